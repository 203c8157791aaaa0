"""What the exit status of a rank means, in words and as an exit code. Pure.

The launcher's own exit codes are in :mod:`..exit_codes`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

FAILED = 1
USAGE = 2
DO_NOT_REQUEUE = 93  # a rank requested the shutdown of the whole workload
INTERRUPTED = 130  # Ctrl-C

_HINTS = {
    "SIGKILL": "ended from outside, often by the kernel for lack of memory",
    "SIGSEGV": "crashed in native code (invalid memory access)",
    "SIGBUS": "crashed in native code (bad memory mapping, often a full /dev/shm)",
    "SIGABRT": "aborted by native code (failed assertion, or a watchdog such as NCCL's)",
    "SIGFPE": "crashed in native code (arithmetic)",
    "SIGILL": "crashed in native code (illegal instruction)",
    "SIGTERM": "not sent by the launcher",
    "SIGINT": "interrupted",
}


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank ended: `status` as subprocess has it (negative = signal), `at` in monotonic seconds."""

    rank: int
    local_rank: int
    pid: int
    status: int
    at: float
    patience: float | None = None  # seconds after which the launcher itself killed it
    by_launcher: bool = False  # it obeyed a signal of the launcher

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it, by name, or None."""
        if self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    @property
    def end(self) -> str:
        """How it ended, in short: `SIGKILL` or `exit code 3`."""
        return self.signal_name or f"exit code {self.status}"

    @property
    def meaning(self) -> str:
        """In words: `exit code 3`, `killed by SIGSEGV (crashed in native code …)`."""
        name = self.signal_name
        if name is None:
            return f"exit code {self.status}"
        if self.patience is not None:
            return f"killed by {name} (by the launcher, after {max(0.0, self.patience):.1f} s)"
        if self.by_launcher:
            return f"killed by {name} (by the launcher)"
        hint = _HINTS.get(name)
        return f"killed by {name}" + (f" ({hint})" if hint else "")


def as_exit_code(status: int) -> int:
    """A rank's own code, or 128+n for signal n, as a shell reports it."""
    return 128 - status if status < 0 else status


def obeyed(found: RankExit, number: int) -> bool:
    """Whether the rank ended by the signal that was passed on (or as a shell reports it): that is no failure."""
    return found.status in (0, -number, 128 + number)
