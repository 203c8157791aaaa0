"""A node without a launcher: real boards, a real monitor process and its real keeper; the test is the launcher.

The ranks are processes that do nothing; what they seem to do on their boards the test does for them, in its own
process, so nothing depends on how fast a rank runs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.fault_tolerance.board import Board, BoardWriter, Identity, Limits
from holdfast.fault_tolerance.launcher.inbox import Inbox
from holdfast.fault_tolerance.launcher.monitor_keeper import MonitorKeeper
from holdfast.fault_tolerance.monitor.control import RUNNING, ControlPage, Settings
from holdfast.fault_tolerance.processes import proc
from tests.boards import SECOND
from tests.processes import CEILING, Spawned, Spawner


class Rank:
    """A process, its board, and the hand that writes there for it."""

    def __init__(self, process: Spawned, board: Board) -> None:
        self.process = process
        self.board = board
        self.hand = BoardWriter(board.path)

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    def close(self) -> None:
        self.hand.detach()
        self.board.close()


class Node:
    """`start` a cycle, then `hear` what the monitor says. `until` does what a launcher does meanwhile."""

    def __init__(
        self, spawn: Spawner, folder: str, *, check_interval: float, termination: int, patience: float
    ) -> None:
        self.spawn = spawn
        self.folder = folder
        self.control = ControlPage(folder)  # made with the folder
        self.inbox = Inbox()
        self.replaced: list[str] = []
        self.said: list[dict[str, Any]] = []
        self.ranks: list[Rank] = []
        self._given: Counter[str] = Counter()
        settings = Settings(folder, check_interval, termination, patience)
        self.keeper = MonitorKeeper(settings, self.control, self.inbox, self.replaced.append)
        self.keeper.start()

    def board_path(self, local_rank: int, cycle: int = 0) -> str:
        return os.path.join(self.folder, f"cycle-{cycle}", f"{local_rank}.board")

    def start(self, limits: Limits, *processes: Spawned, cycle: int = 0) -> list[Rank]:
        """Begin a cycle with these processes as its ranks (one that does nothing if none is given)."""
        for local_rank, process in enumerate(processes or (victim(self.spawn),)):
            rank = Rank(process, Board.create(self.board_path(local_rank, cycle), limits))
            rank.board.bind_process(
                identity(process, rank=local_rank, cycle=cycle, started_ns=time.monotonic_ns())
            )
            self.ranks.append(rank)
        self.watch(cycle)
        return self.ranks

    def watch(self, cycle: int = 0) -> None:
        """Have the monitor watch the boards of this cycle from now on."""
        self.control.enter(RUNNING, cycle)
        self.keeper.scan()

    def pump(self, seconds: float) -> None:
        """Take in what arrives within this time."""
        for event in self.inbox.wait(seconds):
            if isinstance(event, dict):
                self.said.append(event)

    def heard(self, event: str) -> list[dict[str, Any]]:
        """Everything of this kind that the monitors have said so far."""
        return [message for message in self.said if message["event"] == event]

    def hear(self, event: str, ceiling: float = CEILING) -> dict[str, Any]:
        """The next message of this kind that was not given out here before; waits for it."""
        number = self._given[event]
        self.until(lambda: len(self.heard(event)) > number, f"the monitor said no {event!r}", ceiling)
        self._given[event] += 1
        return self.heard(event)[number]

    def until(self, happened: Callable[[], object], what: str, ceiling: float = CEILING) -> None:
        """Be the launcher (take in messages, keep a monitor running) until something happened."""
        deadline = time.monotonic() + ceiling
        while not happened():
            if time.monotonic() > deadline:
                pytest.fail(f"{what} within {ceiling:g} s; it said {self.said}")
            self.pump(0.02)
            self.keeper.check(time.monotonic())

    def looks(self, count: int, ceiling: float = CEILING) -> None:
        """Wait until the monitor has looked this many times more."""
        goal = self.control.tick + count
        self.until(lambda: self.control.tick >= goal, f"the monitor did not look {count} times", ceiling)

    def close(self) -> None:
        self.keeper.close()
        self.inbox.close()
        for rank in self.ranks:
            rank.process.kill()
            rank.close()
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """This process can have no more of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def thaw(pid: int) -> None:
    """SIGCONT, whether the process is still there or not."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


# -- processes that stand for ranks --------------------------------------------------------------------------

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    signal.pause()
"""


def victim(spawn: Spawner) -> Spawned:
    """Ends by any signal."""
    return spawn(["sleep", "999"])


def stubborn(spawn: Spawner) -> Spawned:
    """Ignores SIGTERM."""
    found = spawn.python(STUBBORN)
    found.wait_for("deaf")
    return found


def identity(process: Spawned, *, rank: int = 0, cycle: int = 0, started_ns: int = SECOND) -> Identity:
    """Who this process is on a board."""
    start = proc.start_time(process.pid)
    assert start is not None
    return Identity(process.pid, start, rank, rank, cycle, started_ns)


def state(process: Spawned | subprocess.Popen[bytes]) -> str:
    """Its one-letter state, '' when it is gone."""
    found = proc.stat(process.pid)
    return found.state if found else ""
