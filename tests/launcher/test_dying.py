"""Ranks that outlive SIGKILL: those in state D are given up, the others are waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.inbox import Inbox
from holdfast.fault_tolerance.launcher.ranks import dying
from holdfast.fault_tolerance.launcher.ranks.dying import Dying, uninterruptible
from holdfast.fault_tolerance.launcher.ranks.group import RankGroup
from tests.processes import Spawner, wait_until

# The child waits in opening a FIFO before it has become another program, and its parent waits for that in state D.
IN_STATE_D = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""

# What is left of a process that ended belongs first to the one that traces it: as slow as the tracer wants.
TRACER = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print("seized" if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0 else "refused", flush=True)
sys.stdin.read()
"""


def test_state_d_for_long_enough(spawn: Spawner, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waits = spawn.python(IN_STATE_D, str(fifo))
    sleeps = spawn(["sleep", "600"])
    wait_until(lambda: uninterruptible(waits.pid))
    both, looks = {waits.pid, sleeps.pid}, Dying()
    assert looks.look(both, 100.0) == looks.look(both, 109.0) == set()
    assert looks.look(both, 110.0) == {waits.pid}
    looks.lend(5.0)
    assert looks.look(both, 112.0) == set()
    os.close(os.open(fifo, os.O_WRONLY))  # it goes on, and ends
    wait_until(lambda: not uninterruptible(waits.pid))
    assert looks.look(both, 200.0) == set()


def test_a_rank_that_ends_slowly_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dying, "UNINTERRUPTIBLE", 0.2)
    monkeypatch.setattr(dying, "SLOW", 0.2)
    rank = subprocess.Popen(["sleep", "600"])
    words = [sys.executable, "-c", TRACER, str(rank.pid)]
    tracer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tracer.stdin and tracer.stdout
    inbox = Inbox()
    group = RankGroup({0: rank}, {0: 0}, inbox)
    try:
        if tracer.stdout.readline() != b"seized\n":
            pytest.skip("tracing is not allowed here")
        until = time.monotonic() + 2.5

        def looks(events: list[object]) -> bool:
            if time.monotonic() > until and tracer.stdin:
                tracer.stdin.close()
            return False

        assert group.stop(lambda _: 0.0, looks) == []
        assert group.exits[0].status == -signal.SIGKILL and "by the launcher" in group.exits[0].meaning
        assert time.monotonic() > until
    finally:
        for process in (tracer, rank):
            process.kill()
            process.wait()
        tracer.stdout.close()
        group.close()
        inbox.close()


def test_who_was_suspended_before_it_was_waited_for_gets_that_time_back() -> None:
    """Between the signal to the ranks and the wait for them a scheduler may freeze all of the job."""
    rank = subprocess.Popen(["sh", "-c", "sleep 0.5; exit 7"])
    inbox = Inbox()
    group = RankGroup({0: rank}, {0: 0}, inbox)
    began = time.monotonic() - 5.0
    try:
        assert group.wait(lambda _: began + 3.0, lambda _: False, began) == []
        assert (group.exits[0].status, group.killed) == (7, {})
    finally:
        rank.kill()
        rank.wait()
        group.close()
        inbox.close()
