"""One look of the monitor, in this process: what fails about one rank saves no other one that is hung."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, Limits
from holdfast.fault_tolerance.launcher.ranks.boards import private_directory
from holdfast.fault_tolerance.monitor.control import RUNNING, ControlPage, Settings
from holdfast.fault_tolerance.monitor.watch import Watch
from holdfast.fault_tolerance.processes import proc
from tests.processes import Spawned, Spawner, wait_until

from .test_hangs import heartbeats
from .victims import identity, victim

LIMIT = 0.1


@pytest.fixture
def folder() -> Iterator[str]:
    """A launcher's folder with a control page that says that cycle 0 runs."""
    made = private_directory()
    page = ControlPage(made)
    page.enter(RUNNING, 0)
    page.close()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def ranks(folder: str, spawn: Spawner) -> Iterator[list[Spawned]]:
    """Two ranks; both have sent heartbeats and the limit of both has passed, that of rank 0 first."""
    processes = [victim(spawn), victim(spawn)]
    boards = []
    for rank, process in enumerate(processes):
        board = Board.create(os.path.join(folder, "cycle-0", f"{rank}.board"), Limits(subsequent=LIMIT))
        board.bind_process(identity(process, rank=rank, started_ns=time.monotonic_ns()))
        hand = BoardWriter(board.path)
        heartbeats(hand)
        hand.detach()
        boards.append(board)
    time.sleep(LIMIT)
    yield processes
    for board in boards:
        board.close()


def _look(folder: str) -> list[dict[str, Any]]:
    """What a monitor says from its first look to its verdict."""
    said: list[dict[str, Any]] = []
    watch = Watch(Settings(folder, 1.0, signal.SIGKILL, 1.0), said.append)
    with contextlib.closing(watch):

        def judged() -> bool:
            watch.scan()
            return any(message["event"] == "verdict" for message in said)

        wait_until(judged, what="the verdict")
    return said


def test_an_error_about_one_rank_leaves_the_others_supervised(
    folder: str, ranks: list[Spawned], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = proc.is_running

    def is_running(pid: int, start_time: int) -> bool:
        if pid == ranks[0].pid:
            raise ValueError("no such field")
        return real(pid, start_time)

    monkeypatch.setattr(proc, "is_running", is_running)
    said = _look(folder)
    assert [message["rank"] for message in said if message["event"] == "verdict"] == [1]
    assert [
        "local rank 0 is no longer watched" in one["text"] for one in said if one["event"] == "unreadable"
    ] == [True]
    assert ranks[1].wait() == -signal.SIGKILL and ranks[0].returncode is None
