"""The newest complete checkpoint of a folder, and what was skipped on the way to it.

Newest is by the step in the names, where all have one; else by the time of the last write. What always holds: the same
folder gives the same answer; a link to another checkpoint of the folder counts as nothing, as that one is found itself;
"none" is reported only where all could be read. Does not cover: folders below that are no checkpoints; the
contents of files such as `latest`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.prefixed_log import log
from holdfast.visible import escaped

from . import folder as folders
from . import naming
from .whole import judged, unreadable

FILES = (".ckpt", ".pt", ".pth")


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


def last_complete(folder: str | os.PathLike[str], say: Callable[[str], object] = log.warning) -> Path | None:
    """The newest complete checkpoint in this folder; None if there is none, or no folder.

    `say` gets a line for each that is skipped. On several ranks: `last_complete_on_all_ranks`. Raises OSError if the
    folder is there and cannot be read, or one of its checkpoints cannot and no other is complete: nobody should train
    from the beginning because a disk is gone.
    """
    found = look(folder)
    then = f"resuming from {found.newest.name}" if found.newest else "and no other one is complete"
    for skipped in found.skipped:
        say(escaped(f"checkpoint skipped, {then}: {skipped}"))
    return found.newest


def look(folder: str | os.PathLike[str]) -> Search:
    """As `last_complete`, without saying anything: the answer has what was skipped. Raises OSError."""
    place = Path(folder)
    candidates, unfinished = _candidates(place)
    found = first_complete(_newest_first(candidates))
    left = [path for path in unfinished if found.newest is None or _would_be_newer(path, found.newest)]
    return Search(
        found.newest,
        (*(Skipped(path, "was not finished: its name says so") for path in left), *found.skipped),
    )


def first_complete(newest_first: Iterable[Path]) -> Search:
    """Of these, the first that is complete. Raises OSError if none is, and one of them cannot be read."""
    skipped: list[Skipped] = []
    unread: OSError | None = None
    for path in newest_first:
        try:
            why = judged(path)
        except OSError as error:
            why = unreadable(error)
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
        path = place / entry.name
        if entry.is_symlink() and (_leads_into(place, path) or not path.exists()):
            continue
        if naming.is_unfinished(entry.name):
            if _would_be_one(naming.finished(entry.name)):
                unfinished.append(path)
        elif entry.name.startswith("."):  # nobody's yet, or of another tool
            continue
        elif (entry.is_dir() and folders.is_checkpoint(path)) or (entry.is_file() and path.suffix in FILES):
            found.append(path)
    return found, unfinished


def _leads_into(place: Path, link: Path) -> bool:
    """To another entry of the folder. `Path.resolve` raises where links lead in a circle."""
    return os.path.dirname(os.path.realpath(link)) == os.path.realpath(place)


def _would_be_one(name: str) -> bool:
    return name.endswith(FILES) or naming.step_of(name) is not None


def _would_be_newer(unfinished: Path, newest: Path) -> bool:
    steps = naming.step_of(unfinished.name), naming.step_of(newest.name)
    if steps[0] is not None and steps[1] is not None:
        return steps[0] > steps[1]
    return _written(unfinished) > _written(newest)


def _newest_first(candidates: list[Path]) -> list[Path]:
    steps = {path: naming.step_of(path.name) for path in candidates}
    by_step = None not in steps.values()

    def rank(path: Path) -> tuple[int, int, int, int, str]:
        step, written = steps[path], _written(path)
        first = step if by_step and step is not None else written
        return first, naming.version_of(path.name), written, -1 if step is None else step, path.name

    return sorted(candidates, key=rank, reverse=True)


def _written(path: Path) -> int:
    """When something was last written into it, in nanoseconds."""
    try:
        if path.is_dir():
            return max((entry.stat().st_mtime_ns for entry in os.scandir(path)), default=0)
        return path.stat().st_mtime_ns
    except OSError:  # it is being removed, say; whether it can be read is asked later
        return 0
