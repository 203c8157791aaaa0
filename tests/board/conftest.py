"""A board as the launcher makes it, and its writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, Limits


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
