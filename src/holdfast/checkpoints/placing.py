"""A checkpoint that is complete or absent: written beside its place, flushed, and then renamed.

What always holds: the name of an unfinished one begins with a dot and ends in `.partial`, which nothing picks up on
resume; the next save of the same checkpoint removes it. Does not cover: places that are no local path (object stores
write whole objects).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """`with whole_file("step-100.pt") as unfinished: torch.save(state, unfinished)`: at the end of the block the file
    is flushed and gets its name; when an exception ends the block, it is removed, and what was there before stays.

    Makes the folder. Raises OSError. For one writer.
    """
    final = os.path.abspath(os.fspath(path))
    os.makedirs(os.path.dirname(final), exist_ok=True)
    unfinished = aside(final)
    try:
        yield Path(unfinished)
        put_in_place(unfinished, final)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


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
