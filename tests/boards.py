"""Boards: in a private folder of shared memory for each test; and as values, with the clock in the test's hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Identity, Limits, Snapshot


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on tmpfs, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-board-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives a folder that is a tmpfs of this size, such as "20k"."""

    def mount(size: str) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(tmp_path)]
        mounted = subprocess.run(words, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
        return tmp_path

    yield mount
    if tmp_path.is_mount():
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def identity(pid: int = 0, rank: int = 0) -> Identity:
    """Some rank's identity; this process's by default."""
    return Identity(pid or os.getpid(), 12345, rank, rank, 0, time.monotonic_ns())


# -- boards as values

SECOND = 1_000_000_000
START = 100 * SECOND
"""When the rank of `snapshot` started."""

WHO = Identity(pid=4182, start_time=77, rank=5, local_rank=1, cycle=3, started_ns=START)


def at(seconds: float) -> int:
    """The moment that lies this long after the rank's start."""
    return START + round(seconds * SECOND)


def snapshot(**changes: Any) -> Snapshot:
    """The board of a rank that was admitted and has done nothing yet, with these changes."""
    blank: dict[str, Any] = {
        "identity": WHO,
        "connected": False,
        "finished": False,
        "connected_ns": 0,
        "heartbeat_count": 0,
        "last_heartbeat_ns": 0,
        "step": None,
        "section_count": 0,
        "open_sections": (),
        "out_of_section_since_ns": 0,
        "last_activity_ns": 0,
        "checkpoints": 0,
        "limits": Limits(),
        "request": None,
        "consistent": True,
    }
    return Snapshot(**{**blank, **changes})


def connected(seconds: float = 1.0, **changes: Any) -> Snapshot:
    """The board of a rank that connected this long after its start."""
    moment = {"connected": True, "connected_ns": at(seconds), "last_activity_ns": at(seconds)}
    return snapshot(**{**moment, **changes})
