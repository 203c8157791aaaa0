"""What the monitor is made of and what it withstands: signals, bad boards, recycled pids, ten thousand looks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import Board, BoardWriter, Identity, Limits, layout, writer
from holdfast.fault_tolerance.launcher.monitor_keeper import MAIN
from holdfast.fault_tolerance.monitor.control import ControlPage, Settings
from holdfast.fault_tolerance.monitor.deadlines import Milestones, Suspensions, deadlines, next_scan
from holdfast.fault_tolerance.monitor.hang_handler import describe
from holdfast.fault_tolerance.monitor.main import command
from holdfast.fault_tolerance.monitor.watch import Watch
from holdfast.fault_tolerance.processes import proc
from tests.processes import Spawned, Spawner, wait_until

from .node import Node, identity, state, victim
from .test_hangs import heartbeats
from .values import SECOND

LIMIT = 0.5
MEANT_FOR_THE_TRAINING = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"]


def test_signals_that_are_meant_for_the_training_do_nothing_to_it(node: Node) -> None:
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    monitor = node.keeper.pid
    for name in MEANT_FOR_THE_TRAINING:
        os.kill(monitor, getattr(signal, name))
    heartbeats(rank.hand)
    assert node.hear("verdict")["reason"] == "heartbeat"
    assert (node.keeper.pid, node.replaced) == (monitor, [])
    maps = Path(f"/proc/{monitor}/maps").read_text()
    assert ".so" in maps and "torch" not in maps and "numpy" not in maps


class TestRecycledPid:
    """The identity's pid belongs to another process by now. No process is killed or notified."""

    def test_another_start_time(self, node: Node, spawn: Spawner) -> None:
        ranks = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
        recycled, hung = ranks
        meant = identity(recycled.process, rank=0, started_ns=time.monotonic_ns())
        recycled.board.bind_process(replace(meant, start_time=meant.start_time - 1))
        for rank in ranks:
            rank.hand.connect()
            rank.hand.start_section("step")
        assert node.hear("verdict")["rank"] == 1
        assert hung.process.wait() == -signal.SIGKILL
        node.looks(3)
        assert len(node.heard("verdict")) == 1
        assert recycled.lives

    def test_another_cycle(self, node: Node) -> None:
        (rank,) = node.start(Limits(subsequent=LIMIT))
        rank.board.bind_process(identity(rank.process, cycle=7, started_ns=time.monotonic_ns()))
        heartbeats(rank.hand)
        began = time.monotonic()
        node.until(lambda: time.monotonic() - began > 2 * LIMIT, "")
        assert node.heard("verdict") == []
        assert rank.lives


def test_a_rank_that_has_ended_and_waits_to_be_reaped_is_no_hang(node: Node, spawn: Spawner) -> None:
    """Its launcher may be stopped, and reaps it later: it did not hang, it ended."""
    process = spawn(["true"])
    wait_until(lambda: state(process) == "Z")
    ended, hung = node.start(Limits(subsequent=LIMIT), process, victim(spawn))
    heartbeats(ended.hand)
    heartbeats(hung.hand)
    assert node.hear("verdict")["rank"] == 1
    node.looks(3)
    assert len(node.heard("verdict")) == 1
    assert hung.process.wait() == -signal.SIGKILL


DAMAGE = {
    "truncated": lambda path: os.truncate(path, 4096),
    "gone": os.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_board_that_cannot_be_read_is_said_and_the_others_are_watched(
    node: Node, spawn: Spawner, damage: str
) -> None:
    ranks = node.start(Limits(subsequent=LIMIT), victim(spawn), victim(spawn), cycle=1)
    bad, good = ranks
    DAMAGE[damage](bad.board.path)
    _watch_anew(node)
    heartbeats(good.hand)
    assert node.hear("verdict")["rank"] == 1
    assert good.process.wait() == -signal.SIGKILL
    assert bad.lives
    if damage != "gone":
        assert bad.board.path in node.hear("unreadable")["text"]


def _watch_anew(node: Node) -> None:
    """A new monitor, which opens the boards as they are now."""
    os.kill(node.keeper.pid, signal.SIGKILL)
    node.until(lambda: node.replaced, "the monitor was not replaced")


@given(data=st.data())
def test_whatever_stands_on_a_board_the_monitor_can_go_on(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A rank that scribbles over its own page may be killed for it; the monitor may not fail over it."""
    folder = tmp_path_factory.mktemp("scribbled")
    board = Board.create(str(folder / "0.board"), Limits(sections={"step": 1.0}))
    try:
        board.bind_process(Identity(os.getpid(), 1, 0, 0, 0, 1))
        hand = BoardWriter(board.path)
        heartbeats(hand)
        hand.start_section("step")
        hand.detach()
        with open(board.path, "r+b") as file:
            file.seek(layout.IDENTITY_BYTES + 8 * data.draw(st.integers(0, layout.STATE_WORDS - 40)))
            file.write(data.draw(st.binary(min_size=1, max_size=320)))
        read = board.snapshot()
        first = list(deadlines(read, Suspensions()))
        assert isinstance(next_scan(read, Suspensions(), time.monotonic_ns()), int)
        told = [
            *Milestones().poll(read, board.events),
            *Milestones().suspicion(first[0] if first else None, 10**12),
        ]
        json.dumps([told, describe(read, time.monotonic_ns())])
    finally:
        board.close()


def test_it_imports_nothing_heavy(spawn: Spawner) -> None:
    """The very command that the launcher starts, up to the call of main: what is imported by then."""
    words = command(MAIN, "{}")
    words[-2] = words[-2].removesuffix("main()") + "print(*sys.modules)"
    process = spawn(words)
    assert process.wait() == 0
    modules = set(process.out().split())
    assert "holdfast.fault_tolerance.monitor.main" in modules
    heavy = {"torch", "numpy", "yaml", "rich", "pydantic", "logging.config", "asyncio", "multiprocessing"}
    assert modules & heavy == set()
    assert len(modules) < 150, "it starts in a few hundredths of a second and must stay so"


def test_a_thousand_scans_cost_no_memory(node: Node, spawn: Spawner) -> None:
    ranks = node.start(Limits(subsequent=60.0, sections={"step": 60.0}), victim(spawn), victim(spawn))
    for rank in ranks:
        heartbeats(rank.hand)

    def look(count: int) -> None:
        goal = node.control.tick + count
        while node.control.tick < goal:
            for rank in ranks:
                rank.hand.heartbeat(node.control.tick)
                rank.hand.start_section("step")
                rank.hand.end_section("step")
            node.keeper.scan()
            node.pump(0)

    def growth(scans: int) -> int:
        before = _resident(node.keeper.pid)
        look(scans)
        return _resident(node.keeper.pid) - before

    look(500)
    # What leaks does so in every round; what an allocator takes once, in one.
    assert min(growth(1000) for _ in range(3)) <= 64 * 1024
    assert node.replaced == []


def _resident(pid: int) -> int:
    """Bytes of private memory; pages shared with others say nothing about this process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


# -- one scan, in this process -------------------------------------------------------------------------------

PASSED = 0.1


@pytest.fixture
def ranks(folder: str, spawn: Spawner) -> Iterator[list[Spawned]]:
    """Two ranks; both have sent heartbeats and the limit of both has passed, that of rank 0 first."""
    processes = [victim(spawn), victim(spawn)]
    boards = []
    for rank, process in enumerate(processes):
        board = Board.create(os.path.join(folder, "cycle-0", f"{rank}.board"), Limits(subsequent=PASSED))
        board.bind_process(identity(process, rank=rank, started_ns=time.monotonic_ns()))
        hand = BoardWriter(board.path)
        heartbeats(hand)
        hand.detach()
        boards.append(board)
    time.sleep(PASSED)
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


def test_a_suspension_is_given_back_once_by_every_monitor_after_it(
    folder: str, spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its predecessor's last scan on the page shows the first one that the node was suspended; then it dies."""
    process, now = victim(spawn), time.monotonic_ns()
    board = Board.create(os.path.join(folder, "cycle-0", "0.board"), Limits(subsequent=6.0))
    board.bind_process(identity(process, started_ns=now - 200 * SECOND))
    past = itertools.count(now - 104 * SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "monotonic_ns", lambda: next(past))
        hand = BoardWriter(board.path)
        heartbeats(hand)
    page = ControlPage(folder)
    page.record_scan(now - 100 * SECOND, now - 99 * SECOND)
    page.close()
    said: list[dict[str, Any]] = []
    with contextlib.closing(Watch(Settings(folder, 1.0, signal.SIGKILL, 1.0), said.append)) as watch:
        watch.scan()
    (gap,) = (message for message in said if message["event"] == "gap")
    assert 100 <= gap["seconds"] < 150 and process.returncode is None
    verdict = next(message for message in _look(folder) if message["event"] == "verdict")
    assert 105.9 < verdict["waited"] < 6.0 + 2 * 100, "the limit and the suspension, once"
    assert process.wait() == -signal.SIGKILL
    hand.detach()
    board.close()


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
