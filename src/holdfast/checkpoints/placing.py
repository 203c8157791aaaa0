"""A checkpoint that is complete or absent: written beside its place, flushed, and then renamed.

What always holds: the name of an unfinished one begins with a dot and ends in `.partial`, which nothing picks up on
resume; the next save of the same checkpoint removes it. Does not cover: places that are no local path (object stores
write whole objects).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SUFFIX = ".partial"


def aside(path: str) -> str:
    """Where a checkpoint is written before it is complete."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{SUFFIX}")


def is_aside(path: str) -> bool:
    """Whether this is such a place."""
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(SUFFIX)


def put_in_place(unfinished: str, final: str) -> None:
    """Give a complete file its name, so that it survives a power cut. Raises OSError."""
    if not os.path.isfile(unfinished):
        if os.path.isdir(unfinished):  # an I/O that writes folders, whatever it is asked
            os.rename(unfinished, final)
        return
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, final)
    _flush(Path(final).parent)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every filesystem can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
