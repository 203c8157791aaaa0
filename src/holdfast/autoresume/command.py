"""One attempt as a process: started so that it ends with us, signalled as a group, ended to the last of its processes.

The command leads a session of its own, so that a Ctrl-C in the terminal reaches it once, from us, and the terminal
never stops it. It gets SIGTERM from the kernel when we die, however that happens. We are the subreaper of what it
starts: processes that it leaves behind are found, and no zombie stays.

Does not cover: a process that another user owns by then (set-uid); it is logged and left running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.processes import kill, proc

PR_SET_PDEATHSIG = 1

MARK = "HOLDFAST_ATTEMPT_MARK"
"""In the environment of an attempt's processes: one value for each attempt, to find them by when we were killed."""

NUMBER = "HOLDFAST_ATTEMPT"
"""In the environment of an attempt's processes: its number, from 1."""


class Command:
    """A running attempt."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], mask: set[signal.Signals]) -> None:
        """Start it; `mask` is what it shall have as its signal mask. Raises `OSError`."""
        libc, parent = ctypes.CDLL(None), os.getpid()

        def tie() -> None:
            # In the child, before exec; there are no locks that another thread could hold.
            os.setsid()  # and with it a process group
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        # What is typed is for the user's shell.
        stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
        self._process = subprocess.Popen(list(words), env=dict(environ), stdin=stdin, preexec_fn=tie)
        self.pid = self._process.pid
        self.started = proc.start_time(self.pid)

    def poll(self) -> int | None:
        """Its exit code, -n when signal n ended it; None while it runs. Collects others that have ended."""
        code = self._process.poll()
        orphans.reap({self.pid} if code is None else set())
        return code

    def signal(self, number: int) -> None:
        """Pass a signal on to its process group, as a terminal does; to whoever is left of it after its end."""
        # As long as the group has a member nobody else gets its number.
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None or self.left():
                os.killpg(self.pid, number)

    def kill(self) -> set[int]:
        """End it and everything below us at once; returns the pids that are still there after 10 s."""
        self.signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(orphans.LIMIT)
        return self.sweep() | ({self.pid} if self._process.returncode is None else set())

    def left(self) -> dict[int, int]:
        """Pid -> start time of what it has left running, after its end."""
        return orphans.left(set() if self._process.returncode is not None else {self.pid})

    def sweep(self) -> set[int]:
        """End what it has left running: SIGTERM, then SIGKILL; returns the pids that are still there after 10 s."""
        return orphans.end_all(set() if self._process.returncode is not None else {self.pid})[1]


def left_by(mark: str) -> Callable[[], dict[int, int]]:
    """Finds the processes of an attempt whose keeper was killed: pid -> start time."""
    wanted = f"{MARK}={mark}".encode()
    return lambda: kill.marked(wanted, set())
