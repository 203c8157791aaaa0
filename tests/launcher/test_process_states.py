"""What the launcher reads of its ranks in /proc: which of the killed ones cannot end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.ranks import processes
from holdfast.fault_tolerance.launcher.ranks.processes import ProcessStates, uninterruptible
from tests.processes import Spawner, wait_until

# The child waits in opening a FIFO before it has become another program, and its parent waits for that in state D.
IN_STATE_D = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


def test_killed_rank_in_state_d_is_blocked(spawn: Spawner, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waits, sleeps = spawn.python(IN_STATE_D, str(fifo)), spawn(["sleep", "600"])
    wait_until(lambda: uninterruptible(waits.pid))
    states = ProcessStates()

    def blocked() -> frozenset[int]:
        states.refresh({0: waits.pid, 1: sleeps.pid}, {0, 1}, time.monotonic())
        return states.blocked

    wait_until(lambda: blocked() == {0})
    os.close(os.open(fifo, os.O_WRONLY))  # it continues, and ends
    wait_until(lambda: not blocked())


def test_process_that_cannot_be_read_blocks_no_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with a process in execve on a filesystem that does not answer: a killed one counts as blocked."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def read(pid: int) -> bool:
        with open(fifo) as file:
            return bool(file.read())

    monkeypatch.setattr(processes, "uninterruptible", read)
    states, own = ProcessStates(), {0: os.getpid()}
    for second in range(3):
        states.refresh(own, {0}, 100.0 + second)
    assert states.blocked == {0}
    os.close(os.open(fifo, os.O_WRONLY))  # the thread ends
