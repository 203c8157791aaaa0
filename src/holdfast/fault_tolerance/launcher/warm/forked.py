"""Processes of warm start as the launcher has them: what a zygote has forked, standbys at their gates, zygotes.

A forked process offers what `subprocess.Popen` offers of a child, without pipes.
Source: waitpid(2). Does not cover: which zygote serves (:mod:`.zygotes`).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress

from ...processes import proc
from .zygote import wire

logger = logging.getLogger("holdfast.launcher")
FORKS = 2.0
"""Seconds within which a zygote has forked."""
STALLED = 15
"""Checks, one a second, between which an import has used neither processor nor disk."""
POLL = 0.01  # seconds
UNKNOWN = 255
"""The status of a child whose own is not to be had."""
LETS_GO = 0.5
"""Seconds in which a killed process has ended, unless it waits for a disk or a debugger holds it."""
_dying: list[Process] = []
"""Killed, and not ended yet: they are no rank's, and are not to be waited for. One process is one launcher."""


def end(process: Process) -> None:
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
    """A child of this process, unreaped; `returncode` as of the last poll."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
            time.sleep(POLL)
        return status

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked


class Standby:
    """A process at its gate, on the way to its role."""

    def __init__(self, pid: int, gate: socket.socket) -> None:
        self.process, self.gate = Forked(pid), gate

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def has_started(self, until: float) -> bool:
        """Whether it has reported until then (monotonic seconds) that it is a rank; it is ended where it has not."""
        self.gate.settimeout(max(0.001, until - time.monotonic()))
        with suppress(OSError):
            if self.gate.recv(1):
                self.gate.close()
                return True
        self.end()
        return False

    def end(self) -> None:
        """Kill it. It would end by itself when the gate is closed, unless it is stopped."""
        self.gate.close()
        end(self.process)


class Zygote:
    """One zygote as the launcher has it; `file` is the list that it imports, None once it can fork."""

    def __init__(self, process: Process, channel: socket.socket, file: int | None = None) -> None:
        self.process, self.channel, self.file = process, channel, file
        channel.settimeout(FORKS)
        self._work = (-1, -1)
        self._checks = 0  # since its import has made progress
        self._is_held = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def importing(self) -> str:
        """The module that it is importing ('' for none)."""
        return wire.noted(self.file) if self.file is not None else ""

    def is_readable(self, seconds: float) -> bool:
        """Whether it reports something within `seconds`."""
        poll = select.poll()  # descriptors may have high numbers
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(1e3 * seconds))

    def hold(self) -> None:
        """While ranks start, they have the processors to themselves: an import waits."""
        if self.file is not None and not self._is_held:
            self._is_held = True
            self.process.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        """After :meth:`hold`."""
        if self._is_held:
            self._is_held = False
            self.process.send_signal(signal.SIGCONT)

    def is_stalled(self) -> bool:
        """Whether its import makes no progress; to be called about once a second. Calls are counted, and not seconds,
        because this node may have been suspended."""
        work = _work(self.pid)
        self._checks = 0 if work != self._work or self.file is None or self._is_held else self._checks + 1
        self._work = work
        return self._checks > STALLED

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, which is no fault of the module that it imports."""
        found = proc.stat(self.pid)
        return found is not None and found.state == "T"

    def imported(self) -> None:
        """It has imported its list."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def end(self) -> None:
        """Kill it. Standbys stay: they are the launcher's children."""
        self.channel.close()
        self.imported()
        end(self.process)


def _work(pid: int) -> tuple[int, int]:
    """What a process has used: processor ticks, and bytes and page faults that were read from a disk."""
    found = proc.stat(pid)
    if found is None:
        return 0, 0
    read = 0
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:
        read = int(file.readline().split()[1])
    return found.cpu_ticks, read + found.major_faults
