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
from holdfast.fault_tolerance.monitor.control import RUNNING, ControlPage
from holdfast.fault_tolerance.monitor.execution import Executions
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
        board.admit(identity(process, rank=rank, started_ns=time.monotonic_ns()))
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
    watch = Watch(folder, 0, 1.0, Executions(signal.SIGKILL, patience=1.0), said.append)
    with contextlib.closing(watch):

        def judged() -> bool:
            watch.look()
            return any(message["event"] == "verdict" for message in said)

        wait_until(judged, what="the verdict")
    return said


@pytest.mark.parametrize("broken", [0, 1])
def test_what_cannot_be_described_does_not_save_the_one_that_is_hung(
    folder: str, ranks: list[Spawned], broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_channel(pid: int) -> str:
        if pid == ranks[broken].pid:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a kernel that says something strange")
        return ""

    monkeypatch.setattr(proc, "wait_channel", wait_channel)
    (verdict,) = [message for message in _look(folder) if message["event"] == "verdict"]
    assert verdict["rank"] == 0
    described = [verdict, *verdict["others"]]
    assert [one["rank"] for one in described] == [0, 1]
    assert [one["state"].startswith("unknown: UnicodeDecodeError") for one in described] == [
        rank == broken for rank in (0, 1)
    ]
    assert ranks[0].wait() == -signal.SIGKILL and ranks[1].returncode is None


def test_an_error_in_judging_one_rank_leaves_the_others_to_be_judged(
    folder: str, ranks: list[Spawned], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = proc.start_time

    def start_time(pid: int) -> int | None:
        if pid == ranks[0].pid:
            raise ValueError("no such field")
        return real(pid)

    monkeypatch.setattr(proc, "start_time", start_time)
    said = _look(folder)
    assert [message["rank"] for message in said if message["event"] == "verdict"] == [1]
    assert [
        "local rank 0 is no longer watched" in one["text"] for one in said if one["event"] == "unreadable"
    ] == [True]
    assert ranks[1].wait() == -signal.SIGKILL and ranks[0].returncode is None
