"""A rank's page for an agreed stop, found the way a rank finds it, and its launcher's words on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop.page import PageFile, page_path


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks are started is not the topic here, and a zygote imports torch."""
    monkeypatch.setenv("PET_FT_WARM_START", "off")


@pytest.fixture
def board_path(shm: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where this rank's board would be."""
    path = str(shm / "0.board")
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, path)
    return path


@pytest.fixture
def page(board_path: str) -> Iterator[PageFile]:
    """The launcher's hold on this rank's page."""
    page = PageFile.create(page_path(board_path))
    yield page
    page.close()
