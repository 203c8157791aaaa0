"""The advice to the user where no board can be made: it fits the reason."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, BoardUnavailable, Limits


@contextmanager
def _few_files() -> Iterator[None]:
    """This process can open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files_are_no_matter_of_space(tmp_path: Path) -> None:
    with pytest.raises(BoardUnavailable, match="Too many open files") as raised, _few_files():
        Board.create(str(tmp_path / "0.board"), Limits())
    assert str(raised.value).endswith("without supervision; raise the limit of open files (ulimit -n)")


def test_nor_is_a_filesystem_that_takes_no_files() -> None:
    with pytest.raises(BoardUnavailable) as raised:
        Board.create("/proc/0.board", Limits())
    assert "space" not in str(raised.value)
