"""A checkpoint that is a folder: Hugging Face's `checkpoint-N`, torch's sharded ones, or any with such files in it.

What always holds: every file of a known kind in it is looked at, and for Hugging Face `trainer_state.json`, which its
Trainer writes last, must be there and agree with the name; one of accelerate's `save_state` has random states instead.
Does not cover: a file that is missing and that no other file names, such as the random state of a rank that was killed
before it wrote it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from . import naming, safetensors_file, sharded, torch_file

STATE = "trainer_state.json"
MARK = "checkpoint-is-incomplete.txt"
"""In the folder while transformers' own checkpoint on a signal, or `holdfast.integrations.transformers`, writes it."""
_LARGEST_JSON = 16 << 20
_HUGGING_FACE = re.compile(r"checkpoint-(\d+)$")
_ACCELERATE = "random_states_0.pkl"
"""What accelerate writes last, into folders that may be named like Hugging Face's."""
_BESIDE_THE_WEIGHTS = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler|meta\.pt)"
)
_JSON = re.compile(
    r"((generation_|tokenizer_|adapter_|(video_)?preprocessor_|processor_)?config|tokenizer|special_tokens_map"
    r"|added_tokens|vocab|metadata)\.json$"
)
"""Of the frameworks; any other may be a user's log. Hugging Face's, and Megatron's `metadata.json`."""
_INDEX = re.compile(r".*\.(safetensors|bin)\.index\.json$")
_NO_FOLDER = re.compile(
    r"(optimizer|scheduler|scaler|rng_state(_\d+)?|training_args|(pytorch_|adapter_)?model(-\d+-of-\d+)?)"
    r"\.(pt|pth|bin|safetensors)$"
)
"""Files of Hugging Face's: a folder of such a name is none of them."""
_TORCH = (".pt", ".pth", ".ckpt")
_WEIGHTS = (".safetensors", *_TORCH, ".bin")
_MAYBE_TORCH = (".bin", ".pkl")  # when they begin as such, or have such a name
_NAMED_TORCH = re.compile(r"(pytorch_model|adapter_model|optimizer|scheduler|training_args).*\.bin$")


def is_checkpoint(folder: Path) -> bool:
    """Whether it looks like one, complete or not."""
    if folder.suffix == ".ckpt" or _HUGGING_FACE.search(folder.name):
        return True
    if naming.says_a_step_only(folder.name):
        return True
    try:
        names = os.listdir(folder)
    except OSError:  # `lost+found`, say
        return False
    if any(name in (STATE, ".metadata") or name.endswith((sharded.DATA, ".metadata")) for name in names):
        return True
    if naming.step_of(folder.name) is None:
        return False
    return any(name.endswith(_WEIGHTS) for _, _, below in os.walk(folder) for name in below)


def why_incomplete(folder: Path) -> str:
    """Why it is not complete; nothing if it is. Raises OSError."""
    if (folder / MARK).exists():
        return f"was being written when its job was ended: it has the file {MARK}"
    weights = False
    for place, below, names in _folders(folder):
        if (folder / STATE).exists() and (wrong := [name for name in below if _NO_FOLDER.match(name)]):
            return f"{wrong[0]} is a folder"
        if any(name.endswith(sharded.DATA) for name in names) or sharded.metadata_in(place):
            weights = True
            if why := sharded.why_incomplete(place):
                return why if place == folder else f"{place.name} {why}"
        for name in sorted(names):
            judge = _judge_of(place / name)
            if judge is None:
                continue
            weights = weights or not (name.endswith(".json") or _BESIDE_THE_WEIGHTS.match(name))
            if why := judge(place / name):
                return f"{name} {why}"
    return _why_lacking(folder, weights)


def _why_lacking(folder: Path, weights: bool) -> str:
    found = _HUGGING_FACE.search(folder.name)
    if found and not (folder / STATE).is_file() and not (folder / _ACCELERATE).is_file():
        return f"has no {STATE}, which is written last"
    if (folder / STATE).is_file() and (why := _why_no_state(folder / STATE, found and int(found[1]))):
        return why
    if folder.suffix == ".ckpt" and sharded.metadata_in(folder) and not (folder / "meta.pt").is_file():
        return "has no meta.pt, which Lightning writes last"
    return "" if weights else "has no weights in it"


def _folders(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    def fail(error: OSError) -> None:
        raise error

    for place, below, names in os.walk(folder, onerror=fail):
        below.sort()
        yield Path(place), below, names


def _judge_of(path: Path) -> Callable[[Path], str] | None:
    name, suffix = path.name, path.suffix
    known_json = _JSON.match(name) or _INDEX.match(name)
    if not known_json and suffix not in (*_WEIGHTS, *_MAYBE_TORCH):
        return None
    if not stat.S_ISREG(path.stat().st_mode):
        return lambda path: "is no regular file"  # opening a pipe would wait for who writes it
    if known_json:
        return _why_index if _INDEX.match(name) else _why_no_json
    if suffix == ".safetensors":
        return safetensors_file.why_incomplete
    if suffix in _TORCH or _NAMED_TORCH.match(name):
        return torch_file.why_incomplete
    if suffix in _MAYBE_TORCH:
        with path.open("rb") as file:
            return torch_file.why_incomplete if file.read(2) in (b"PK", b"") else None
    return None


def _why_index(path: Path) -> str:
    """Of weights in several files."""
    try:
        files = set(json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return "is cut off, or no index"
    missing = sorted(str(name) for name in files if not (path.parent / str(name)).is_file())
    return f"names {missing[0]}, which is not there" if missing else ""


def _why_no_json(path: Path) -> str:
    if (size := path.stat().st_size) > _LARGEST_JSON:
        return ""
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return f"is cut off, after {size} bytes"
    return ""


def _why_no_state(path: Path, step: int | None) -> str:
    try:
        state = json.loads(path.read_bytes())
        told = state["global_step"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return f"has a {STATE} that is cut off, after {path.stat().st_size} bytes"
    if step is not None and told != step:
        return f"has a {STATE} of step {told}"
    return ""
