"""A rank's page for an agreed stop, found the way a rank finds it, and its launcher's words on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from holdfast.fault_tolerance import environment
from holdfast.fault_tolerance.stop.page import PageFile, page_path

from .nodes import HOST, Here, Make, Meeting


@pytest.fixture
def board_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this rank's board would be."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-stop-", dir="/dev/shm"))
    path = str(folder / "0.board")
    monkeypatch.setenv(environment.BOARD, path)
    yield path
    shutil.rmtree(folder)


@pytest.fixture
def page(board_path: str) -> Iterator[PageFile]:
    """The launcher's hold on this rank's page."""
    page = PageFile.create(page_path(board_path))
    yield page
    page.close()


@pytest.fixture
def node() -> Iterator[Make]:
    """Makes a node."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-stop-", dir="/dev/shm"))
    made: list[Here] = []

    def make() -> Here:
        made.append(Here(folder, 2 * len(made)))
        return made[-1]

    yield make
    for here in made:
        here.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def libuv_has_begun() -> None:
    """The first store of a process opens a pipe that libuv keeps for ever: that is nobody's leak."""
    TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def meeting(libuv_has_begun: None) -> Iterator[Meeting]:
    """A store that is closed after the test."""
    made = Meeting()
    yield made
    made.close()
