"""Ending a hung rank: SIGCONT, the configured signal, SIGKILL when that was not enough.

The process is checked by pid and start time behind a pidfd before each signal. One that was signalled is
remembered until it is gone, so it gets each signal once.
Does not cover: a process that even SIGKILL cannot end (uninterruptible sleep); the launcher reports that one.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from ..board import Identity
from ..processes.pidfd import send_verified
from .gaps import SECOND


@dataclass(slots=True)
class Executions:
    """Ranks that have been signalled, with the moment at which SIGKILL follows (monotonic nanoseconds)."""

    termination: int
    patience: float  # seconds between the termination signal and SIGKILL
    _pending: dict[Identity, int] = field(default_factory=dict)
    _done: set[Identity] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Name of the first signal."""
        return signal.Signals(self.termination).name

    def knows(self, who: Identity) -> bool:
        """Whether this rank was signalled already."""
        return who in self._pending or who in self._done

    def begin(self, who: Identity, now_ns: int) -> str | None:
        """First signal; its name, or None when the process is not the one meant or is gone."""
        if self.termination == signal.SIGKILL:
            self._done.add(who)
        else:
            self._pending[who] = now_ns + int(self.patience * SECOND)
            # A stopped process acts on a signal only when it continues (SIGKILL needs no such help).
            send_verified(who.pid, who.start_time, signal.SIGCONT)
        sent = send_verified(who.pid, who.start_time, self.termination)
        return self.name if sent else None

    def escalate(self, now_ns: int) -> list[Identity]:
        """SIGKILL for everyone whose time is up; returns those that were still there."""
        due = [who for who, at in self._pending.items() if at <= now_ns]
        for who in due:
            del self._pending[who]
            self._done.add(who)
        return [who for who in due if send_verified(who.pid, who.start_time, signal.SIGKILL)]

    def postpone(self, by_ns: int) -> None:
        """The world stood still: patience is counted in time in which a rank could have ended."""
        self._pending = {who: at + by_ns for who, at in self._pending.items()}

    @property
    def next_ns(self) -> int | None:
        """When the next SIGKILL is due."""
        return min(self._pending.values(), default=None)

    def forget(self) -> None:
        """A new cycle: its ranks are other processes."""
        self._pending.clear()
        self._done.clear()
