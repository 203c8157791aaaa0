"""The launcher's pages: one that cannot be made is said, and nothing else."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.stop.page import StopPages, page_path


def test_a_page_that_cannot_be_mapped_is_said_and_taken_away(
    board_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fails)
    pages = StopPages()
    pages.open({0: board_path})
    assert not pages and not Path(page_path(board_path)).exists()
    assert "local rank 0 takes no part in an agreed stop" in caplog.text
    assert "Cannot allocate memory" in caplog.text
