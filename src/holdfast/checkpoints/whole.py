"""Whether a checkpoint is complete, whatever its kind.

What always holds: nothing is unpickled, no tensor is read, nothing is changed. Does not cover: bytes that changed
where they are; whoever loads the checkpoint finds out.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import folder, naming, torch_file


def why_incomplete(path: str | os.PathLike[str]) -> str:
    """Why a checkpoint, file or folder, cannot be resumed from, as the rest of a sentence ("is cut off, after 4096
    bytes"); nothing if it is complete. Raises nothing: a path that cannot be read is not complete."""
    checkpoint = Path(path)
    if naming.is_unfinished(checkpoint.name):
        return "was not finished: its name says so"
    try:
        if checkpoint.is_dir():
            return folder.why_incomplete(checkpoint)
        return torch_file.why_incomplete(checkpoint)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
