"""A private folder of shared memory for each test, and a board in it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, Identity, Limits


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on tmpfs, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-board-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def board(shm: Path) -> Iterator[Board]:
    """A board as the launcher makes it, not yet admitted."""
    board = Board.create(str(shm / "cycle-0" / "0.board"), Limits())
    yield board
    board.close()


@pytest.fixture
def writer(board: Board) -> Iterator[BoardWriter]:
    """What a rank writes with, not yet connected."""
    writer = BoardWriter(board.path)
    yield writer
    writer.detach()


def identity(pid: int = 0, rank: int = 0) -> Identity:
    """Some rank's identity; this process's by default."""
    return Identity(pid or os.getpid(), 12345, rank, rank, 0, time.monotonic_ns())
