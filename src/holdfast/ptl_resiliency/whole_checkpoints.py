"""Checkpoint files that are complete or absent: each is written beside its place and then renamed.

Lightning writes to a temporary folder and moves the file, which is a copy where that folder is on another filesystem; a
rank that is killed meanwhile leaves half a `last.ckpt`, and the next start fails on it. So while one of our callbacks
is active, what a trainer's checkpoint I/O writes goes beside its place, is flushed to the disk, and takes its place in
one step.

What always holds: the name of an unfinished file ends in `.partial`, which nothing picks up on resume; the next save
of the same file removes it. Does not cover: places that are no local path (object stores write whole objects), and
checkpoints that are folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .patches import Patches
from .saved_checkpoints import layers

SUFFIX = ".partial"


def aside(path: str) -> str:
    """Where a checkpoint is written before it is complete."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{SUFFIX}")


def _is_aside(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(SUFFIX)


def keep_whole(trainer: Any, patches: Patches) -> None:
    """From now until `patches` are undone, files that this trainer saves are complete or absent.

    Each user has a patch of its own, so it does not matter which of them ends first; the outermost does the work.
    """
    *_, writer = layers(trainer)
    patches.wrap(writer, "save_checkpoint", _save_whole)


def _save_whole(save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    path = args[1] if len(args) > 1 else kwargs.get("path")
    if not isinstance(path, (str, os.PathLike)) or "://" in os.fspath(path):
        return save(*args, **kwargs)
    final = os.path.abspath(os.fspath(path))
    if _is_aside(final):  # somebody else sees to it: another user of this, or who saves the last checkpoint
        return save(*args, **kwargs)
    unfinished = aside(final)
    if len(args) > 1:
        args = (args[0], unfinished, *args[2:])
    else:
        kwargs = {**kwargs, "path": unfinished}
    try:
        done = save(*args, **kwargs)
        put_in_place(unfinished, final)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return done


def put_in_place(unfinished: str, final: str) -> None:
    """Give a complete file its name, so that it survives a power cut. Raises OSError."""
    if not os.path.isfile(unfinished):
        if os.path.isdir(unfinished):  # an I/O that writes folders, whatever it is asked
            os.rename(unfinished, final)
        return
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, final)
    folder = os.open(Path(final).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # not every filesystem can
            os.fsync(folder)
    finally:
        os.close(folder)
