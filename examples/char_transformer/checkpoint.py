"""Checkpoints that are either complete or not there, whenever the process dies.

What always holds: a file named `step-N.pt` was complete when it got its name; the newest one that can be read is
loaded; at least one older one is kept. What this does not cover: several writers (only rank 0 saves), and storage that
loses what it has confirmed.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

PATTERN = "step-????????.pt"


def save(directory: Path, step: int, state: dict[str, Any], keep: int = 2) -> None:
    """Writes the state reached after `step` steps, then removes all older ones but the newest `keep` - 1.

    What is there of later steps was damaged, or this training would have begun from it: it makes no good one go.
    """
    path = _path(directory, step)
    temporary = directory / f"{path.name}.tmp"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # Its content is on the disk before its name is.
    temporary.replace(path)
    _sync_directory(directory)
    so_far = [found for found in sorted(directory.glob(PATTERN)) if found.name <= path.name]
    for old in so_far[:-keep]:
        old.unlink()


def load_newest(directory: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None. What a dead writer left half-written is removed."""
    for temporary in directory.glob(f"{PATTERN}.tmp"):
        temporary.unlink(missing_ok=True)
    for path in sorted(directory.glob(PATTERN), reverse=True):
        try:
            return _load(path)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            print(
                f"skipped {path.name}, it cannot be read: {str(error).split('. ')[0]}",
                file=sys.stderr,
                flush=True,
            )
    return None


def load(directory: Path, step: int) -> dict[str, Any]:
    """The checkpoint of a step that another rank has found to be readable."""
    return _load(_path(directory, step))


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}.pt"


def _load(path: Path) -> dict[str, Any]:
    # To the CPU: every rank reads the same file, and none needs the memory of another's GPU.
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
