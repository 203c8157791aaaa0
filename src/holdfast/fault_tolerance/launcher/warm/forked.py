"""A rank that a standby has become, with what `subprocess.Popen` offers of a child: torch's agent and ours use it.

Source: waitpid(2). Does not cover: pipes.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

logger = logging.getLogger("holdfast.launcher")
POLL = 0.01  # seconds
UNKNOWN = 255
"""The status of a child whose own is not to be had."""
LETS_GO = 0.5
"""Seconds in which a killed process has ended, unless it waits for a disk or a debugger holds it."""
_dying: list[subprocess.Popen[bytes] | Forked] = []
"""Killed, and not ended yet: they are no rank's, and are not to be waited for. One process is one launcher."""


def end(process: subprocess.Popen[bytes] | Forked) -> None:
    """Kill it; one that does not end soon is remembered, and left to itself. Raises nothing."""
    process.kill()
    try:
        process.wait(LETS_GO)
    except subprocess.TimeoutExpired:
        _dying.append(process)


def collect() -> None:
    """Reap those that were killed and have ended by now; for the main thread."""
    _dying[:] = [process for process in _dying if process.poll() is None]


def dying() -> set[int]:
    """Pids of those that were killed and had not ended at the last :func:`collect`."""
    return {process.pid for process in list(_dying)}


class Forked:
    """A child of this process, unreaped; `args` is its command line, `returncode` as of the last look."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, list(args)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, as subprocess has it (negative: a signal); None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # its status was collected elsewhere, which is a defect
                logger.warning("pid %d ended with an unknown status: it counts as failed", self.pid)
                self.returncode = UNKNOWN
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended. Raises subprocess.TimeoutExpired."""
        began = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL)
        return status

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)
