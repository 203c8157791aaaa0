"""Whether a checkpoint is complete, whatever its kind.

What always holds: nothing is unpickled, no tensor is read, nothing is changed. Does not cover: bytes that changed
where they are; the program that loads the checkpoint detects that.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from . import folder, naming, torch_file


def why_incomplete(path: str | os.PathLike[str]) -> str:
    """Why a checkpoint, file or folder, cannot be resumed from, as the rest of a sentence ("is cut off, after 4096
    bytes"); nothing if it is complete. Raises nothing: a path that cannot be read is not complete."""
    try:
        return judged(Path(path))
    except OSError as error:
        return unreadable(error)


def judged(checkpoint: Path) -> str:
    """As `why_incomplete`, where a disk that is gone is not the same as half a checkpoint. Raises OSError."""
    if naming.is_unfinished(checkpoint.name):
        return "was not finished: its name says so"
    if checkpoint.is_dir():
        return folder.why_incomplete(checkpoint)
    if not stat.S_ISREG(checkpoint.stat().st_mode):
        return "is no regular file"  # opening a pipe would wait for who writes it
    return torch_file.why_incomplete(checkpoint)


def unreadable(error: OSError) -> str:
    """The reason where `judged` has raised."""
    return f"cannot be read: {error.strerror or error}"
