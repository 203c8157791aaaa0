"""The newest complete checkpoint of a folder, and why others are not complete.

Newest is by the step in the names, where all have one; else by the time of the last write. Complete is judged by the
structure of files: the directory at the end of a file of `torch.save`, the header of a safetensors file, the files and
sizes that torch's `.metadata` names, Hugging Face's `trainer_state.json`.

What always holds: nothing in a checkpoint is executed, no tensor is read, nothing is changed or removed; the same
folder gives the same answer; a link to another checkpoint of the folder counts as nothing, as that one is found itself;
"none" is reported only where all could be read. Does not cover: bytes that changed, or zeros in the middle that a power
cut left; a file that is missing and that no other names; a folder that was saved into twice; folders below that are no
checkpoints; the contents of files such as `latest`; torch's format before 1.6, which does not show its length.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import stat
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.prefixed_log import log
from holdfast.visible import escaped

if TYPE_CHECKING:
    from holdfast.side_group import SideGroup

STATE = "trainer_state.json"
MARK = "checkpoint-is-incomplete.txt"
"""In the folder while transformers' own checkpoint on a signal, or `holdfast.integrations.transformers`, writes it."""

_FILES = (".ckpt", ".pt", ".pth")
_WEIGHTS = (".safetensors", *_FILES, ".bin")
_SHARD = ".distcp"
_UNFINISHED = (".partial", ".tmp", ".temp", ".incomplete", ".part")
_STEP = re.compile(r"(?:step|iter(?:ation)?|checkpoint)[=_-]?(\d+)", re.IGNORECASE)
_ONLY_A_STEP = re.compile(
    r"(epoch[=_-]?\d+[_-])?(global_?)?(step|iter(ation)?|checkpoint)[=_-]?\d+(-v\d+)?", re.IGNORECASE
)
_VERSION = re.compile(r"-v(\d+)(?:\.\w+)?$")  # Lightning's, for a second checkpoint of one name
_HUGGING_FACE = re.compile(r"checkpoint-(\d+)$")
_INDEX = (".safetensors.index.json", ".bin.index.json")
_JSON = (
    "config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "metadata.json",
)
"""How the frameworks' files end; any other may be a user's log."""
_BESIDE_THE_WEIGHTS = (
    "training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states", "sampler", "meta.pt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that is no use, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


@dataclass(frozen=True, slots=True)
class Search:
    """What was found: the newest complete checkpoint, and those that would have been newer, unfinished ones as well."""

    newest: Path | None
    skipped: tuple[Skipped, ...]


# -- the search ------------------------------------------------------------------------------------------------


def last_complete(folder: str | os.PathLike[str], say: Callable[[str], object] = log.warning) -> Path | None:
    """The newest complete checkpoint in this folder; None if there is none, or no folder.

    `say` gets a line for each that is skipped. On several ranks: `last_complete_on_all_ranks`. Raises OSError if the
    folder is there and cannot be read, or one of its checkpoints cannot and no other is complete: a
    disk that is gone is no reason to train from the beginning.
    """
    found = look(folder)
    then = f"resuming from {found.newest.name}" if found.newest else "and no other one is complete"
    for skipped in found.skipped:
        say(escaped(f"checkpoint skipped, {then}: {skipped}"))
    return found.newest


def last_complete_on_all_ranks(folder: str | os.PathLike[str]) -> Path | None:
    """`last_complete` of rank 0, on every rank. Collective; a single process needs no process group.

    All ranks get the same path, or all raise; ranks that looked for themselves could see a shared filesystem at
    different moments. Raises OSError on all ranks if rank 0 cannot read the folder, and
    `holdfast.side_group.CollectiveFailed` if it does not answer in the time that the training gives a rank. Does not
    cover: a path that only rank 0 can read.
    """
    from holdfast.side_group import SideGroup  # others of this module's users need no collectives

    side = SideGroup()
    try:
        told = chosen_by_rank_0(side, folder, lambda: last_complete(folder))
    finally:
        side.close()
    return Path(told) if told else None


def chosen_by_rank_0(
    side: SideGroup, folder: str | os.PathLike[str], choose: Callable[[], Path | None]
) -> str:
    """The absolute path that `choose` gives on rank 0, on every rank; empty for none. Collective.

    Raises OSError on all ranks if it fails there, and CollectiveFailed if rank 0 does not answer.
    """
    failed, text = "!", ""
    if side.rank == 0:
        try:
            found = choose()
            text = "" if found is None else str(found.absolute())
            text.encode()
        except Exception as error:  # of any type: the other ranks wait for the result
            why = getattr(error, "strerror", None) or error
            text = f"{failed}checkpoints cannot be looked for in {os.fspath(folder)!a}: {why}"
    told = side.broadcast_text(text, patience=side.setup_timeout)
    if told.startswith(failed):
        raise OSError(told.removeprefix(failed))
    return told


def look(folder: str | os.PathLike[str]) -> Search:
    """As `last_complete`, without saying anything: the answer has what was skipped. Raises OSError."""
    candidates, unfinished = _candidates(Path(folder))
    found = first_complete(_newest_first(candidates))
    left = [path for path in unfinished if found.newest is None or _would_be_newer(path, found.newest)]
    return Search(found.newest, (*(Skipped(path, _why_by_name(path)) for path in left), *found.skipped))


def first_complete(newest_first: Iterable[Path]) -> Search:
    """Of these, the first that is complete. Raises OSError if none is, and one of them cannot be read."""
    skipped: list[Skipped] = []
    unread: OSError | None = None
    for path in newest_first:
        try:
            why = _why(path)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
            if not isinstance(error, FileNotFoundError):  # else it was removed meanwhile
                unread = unread or error
        if not why:
            return Search(path, tuple(skipped))
        skipped.append(Skipped(path, why))
    if unread is not None:
        raise unread
    return Search(None, tuple(skipped))


def _candidates(place: Path) -> tuple[list[Path], list[Path]]:
    """What may be checkpoints, and what was left unfinished."""
    found: list[Path] = []
    unfinished: list[Path] = []
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except FileNotFoundError:
        return [], []
    for entry in entries:
        path, name = place / entry.name, entry.name
        if entry.is_symlink():  # `Path.resolve` raises where links lead in a circle
            leads_to = os.path.realpath(path)
            if os.path.dirname(leads_to) == os.path.realpath(place) or not os.path.exists(leads_to):
                continue
        if _why_by_name(path):
            if step_of(name) is not None or any(f"{ending}." in f"{name}." for ending in _FILES):
                unfinished.append(path)
        elif name.startswith("."):  # unfinished, or of another tool
            continue
        elif (entry.is_dir() and _is_checkpoint(path)) or (entry.is_file() and path.suffix in _FILES):
            found.append(path)
    return found, unfinished


def _is_checkpoint(folder: Path) -> bool:
    """Whether it looks like one, complete or not. One named by its step alone does; `logs-step-3` may be anything."""
    name = folder.name
    if folder.suffix == ".ckpt" or _HUGGING_FACE.search(name) or _ONLY_A_STEP.fullmatch(name):
        return True
    try:
        names = os.listdir(folder)
    except OSError:  # `lost+found`, say
        return False
    if any(name == STATE or name.endswith((_SHARD, ".metadata")) for name in names):
        return True
    if step_of(name) is None:
        return False
    return any(name.endswith(_WEIGHTS) for _, _, below in os.walk(folder) for name in below)


def step_of(name: str) -> int | None:
    """The last step that the name tells (`step=40`, `iter_0000040`, `checkpoint-40`); None if it tells none."""
    found = _STEP.findall(name)
    return int(found[-1]) if found else None


def _would_be_newer(unfinished: Path, newest: Path) -> bool:
    steps = step_of(unfinished.name), step_of(newest.name)
    if steps[0] is not None and steps[1] is not None:
        return steps[0] > steps[1]
    return _written(unfinished) > _written(newest)


def _newest_first(candidates: list[Path]) -> list[Path]:
    steps = {path: step_of(path.name) for path in candidates}
    by_step = None not in steps.values()

    def rank(path: Path) -> tuple[int, int, int, int, str]:
        step, written = steps[path], _written(path)
        first = step if by_step and step is not None else written
        version = _VERSION.search(path.name)
        return first, int(version[1]) if version else 0, written, -1 if step is None else step, path.name

    return sorted(candidates, key=rank, reverse=True)


def _written(path: Path) -> int:
    """When something was last written into it, in nanoseconds."""
    try:
        if path.is_dir():
            return max((entry.stat().st_mtime_ns for entry in os.scandir(path)), default=0)
        return path.stat().st_mtime_ns
    except OSError:  # it is being removed, say; whether it can be read is asked later
        return 0


# -- one checkpoint --------------------------------------------------------------------------------------------


def why_incomplete(path: str | os.PathLike[str]) -> str:
    """Why a checkpoint, file or folder, cannot be resumed from, as the rest of a sentence ("is cut off, after 4096
    bytes"); nothing if it is complete. Raises nothing: a path that cannot be read is not complete."""
    try:
        return _why(Path(path))
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _why(checkpoint: Path) -> str:
    """As `why_incomplete`, where a disk that is gone is not the same as half a checkpoint. Raises OSError, as all
    below."""
    if why := _why_by_name(checkpoint):
        return why
    if checkpoint.is_dir():
        return _why_folder(checkpoint)
    return _why_no_file(checkpoint) or _why_torch(checkpoint)


def _why_by_name(path: Path) -> str:
    """Its writer has not given it its name yet."""
    unfinished = path.name.lower().endswith(_UNFINISHED) or path.name.startswith(("tmp-", ".tmp"))
    return "was not finished, according to its name" if unfinished else ""


def _why_no_file(path: Path) -> str:
    """Opening a pipe would wait for who writes it."""
    return "" if stat.S_ISREG(path.stat().st_mode) else "is no regular file"


def _why_folder(folder: Path) -> str:
    """Every file of a known kind is looked at, also in folders below."""
    if (folder / MARK).exists():
        return f"was being written when its job was ended: it has the file {MARK}"
    of_hugging_face = (folder / STATE).is_file()
    weights = False

    def fail(error: OSError) -> None:
        raise error

    for at, below, names in os.walk(folder, onerror=fail):
        place = Path(at)
        below.sort()
        if of_hugging_face and (wrong := [name for name in below if name.endswith(_WEIGHTS)]):
            return f"{wrong[0]} is a folder"
        if any(name.endswith(_SHARD) for name in names) or _metadata_in(place):
            weights = True
            if why := _why_sharded(place):
                return why if place == folder else f"{place.name} {why}"
        for name in sorted(names):
            if not name.endswith((*_WEIGHTS, *_JSON, *_INDEX, ".pkl")):
                continue
            weights = weights or (not name.endswith(".json") and not name.startswith(_BESIDE_THE_WEIGHTS))
            if why := _why_no_file(place / name) or _why_part(place / name):
                return f"{name} {why}"
    return _why_lacking(folder, weights)


def _why_lacking(folder: Path, weights: bool) -> str:
    """What each framework writes last must be there."""
    name, state = _HUGGING_FACE.search(folder.name), folder / STATE
    # accelerate's `save_state` writes random states last, into folders that may be named like Hugging Face's
    if name and not state.is_file() and not (folder / "random_states_0.pkl").is_file():
        return f"has no {STATE}, which is written last"
    if state.is_file():
        told = _read_json(state)
        if not isinstance(told, dict) or "global_step" not in told:
            return f"has a {STATE} that is cut off, after {state.stat().st_size} bytes"
        if name and told["global_step"] != int(name[1]):
            return f"has a {STATE} of step {told['global_step']}"
    if folder.suffix == ".ckpt" and _metadata_in(folder) and not (folder / "meta.pt").is_file():
        return "has no meta.pt, which Lightning writes last"
    return "" if weights else "has no weights in it"


def _why_part(path: Path) -> str:
    """Of one file in a folder."""
    if path.name.endswith(_INDEX):  # of weights in several files
        try:
            named = {str(name) for name in _read_json(path)["weight_map"].values()}
        except (AttributeError, KeyError, TypeError):
            return "is cut off, or no index"
        missing = sorted(name for name in named if not (path.parent / name).is_file())
        return f"names {missing[0]}, which is not there" if missing else ""
    if path.suffix == ".json":
        return "" if _read_json(path) is not None else f"is cut off, after {path.stat().st_size} bytes"
    if path.suffix == ".safetensors":
        return _why_safetensors(path)
    if path.suffix in (".bin", ".pkl"):
        with path.open("rb") as file:
            if not b"PK".startswith(file.read(2)):  # of torch.save, perhaps cut off; others may be anything
                return ""
    return _why_torch(path)


def _read_json(path: Path) -> Any:
    """None where it is none."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None


def _why_torch(path: Path) -> str:
    """A file of `torch.save` is a zip archive whose directory is written last and at its end, so one that was cut
    anywhere has none. Only the ends of the file and the directory are read."""
    with path.open("rb") as file:
        first = file.read(4)
        if not first:
            return "is empty"
        if first.startswith(b"\x80"):  # a pickle
            return "is in torch's format before 1.6, which does not show whether a file is complete"
        if first != b"PK\x03\x04":
            return f"is no file of torch.save: it begins with {first!r}"
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22))
        if file.read(4) != b"PK\x05\x06":
            return f"is cut off, after {size} bytes"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
            start = archive.start_dir
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        return f"is damaged: {error}"
    if not any(entry.filename.endswith("/data.pkl") for entry in entries):
        return "is a zip archive, but not of torch.save: it has no data.pkl"
    if entries[0].header_offset != 0:  # the directory counts from another beginning
        return "is damaged: bytes are missing from it, or were put before it"
    ends = [entry.header_offset for entry in entries[1:]] + [start]
    for entry, end in zip(entries, ends, strict=True):
        if entry.header_offset + 30 + len(entry.filename) + entry.compress_size > end:
            return f"is damaged: {entry.filename} has no room for its {entry.compress_size} bytes"
    return ""


def _why_safetensors(path: Path) -> str:
    """The header, at the beginning, says where the last tensor ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or 8 + length > size:
            return f"is cut off in its header, after {size} bytes"
        if length > 100_000_000:  # the format's own limit
            return "is no safetensors file: its header is too long"
        raw = file.read(length)
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        return "is damaged: its header cannot be read"
    return "" if size == needed else f"has {size} bytes of {needed}"


# -- torch.distributed.checkpoint ------------------------------------------------------------------------------


def _metadata_in(folder: Path) -> list[Path]:
    """One file, or one of each rank."""
    one = folder / ".metadata"
    return [one] if one.is_file() else sorted(filter(Path.is_file, folder.glob("__*.metadata")))


def _why_sharded(folder: Path) -> str:
    """`.metadata` is written when all ranks have written, and names each file with the places in it."""
    metadata = _metadata_in(folder)
    if not metadata:
        return "has no .metadata: not all ranks had written when it was left"
    ends: dict[str, int] = {}
    for path in metadata:
        raw = path.read_bytes()
        if not (raw.startswith(b"\x80") and raw.endswith(b".")):
            return f"has a {path.name} that is cut off, after {len(raw)} bytes"
        try:
            ends |= _ends_in(raw)
        except Exception as error:  # whatever a pickle that is damaged makes of the parts of this program
            return f"has a {path.name} that is damaged: {error}"
    for name, end in sorted(ends.items()):
        if not (folder / name).is_file():
            return f"lacks {name}"
        if (size := (folder / name).stat().st_size) < end:
            return f"has {size} of at least {end} bytes of {name}"
    others = [path.name for path in folder.iterdir() if not path.name.endswith(".metadata")]
    if not ends and (not others or any(name.endswith(_SHARD) for name in others)):
        return f"has a {metadata[0].name} that names no file"  # else of a writer that is not torch's
    return ""


def _ends_in(raw: bytes) -> dict[str, int]:
    """The files that metadata name, and where the last thing in each of them ends."""
    ends: dict[str, int] = {}

    class Inert:
        """Stands for each class and function that the pickle names, so that nothing of it is executed."""

        def __new__(cls, *args: object, **kwargs: object) -> Inert:
            return object.__new__(cls)

        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

        def __setstate__(self, state: Any) -> None:
            if isinstance(state, dict) and {"relative_path", "offset", "length"} <= state.keys():
                path = str(state["relative_path"])
                ends[path] = max(ends.get(path, 1), state["offset"] + state["length"])

        def __setitem__(self, key: object, value: object) -> None:
            pass

        def append(self, value: object) -> None:
            pass

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> type[Inert]:
            return Inert

    Reader(io.BytesIO(raw)).load()
    return ends
