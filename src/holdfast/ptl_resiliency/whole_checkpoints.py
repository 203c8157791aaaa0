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
from typing import Any

from holdfast.checkpoints.placing import aside, is_aside, put_in_place
from holdfast.patches import Patches

from .saved_checkpoints import layers


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
    if is_aside(final):  # somebody else sees to it: another user of this, or who saves the last checkpoint
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
