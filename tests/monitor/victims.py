"""Processes that stand for ranks: they do nothing and are there to be signalled."""

from __future__ import annotations

from holdfast.fault_tolerance.board import Identity
from holdfast.fault_tolerance.processes import proc
from tests.processes import Spawned, Spawner

from .values import SECOND

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


def state(process: Spawned) -> str:
    """Its one-letter state, '' when it is gone."""
    found = proc.stat(process.pid)
    return found.state if found else ""
