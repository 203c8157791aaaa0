"""The end of hung ranks: SIGCONT, the configured signal, SIGKILL after the grace period.

The process is checked by pid and start time behind a pidfd before each signal. One that was signalled is remembered
until the next cycle, so it gets each signal once.
Does not cover: a process that even SIGKILL cannot end (uninterruptible sleep); the launcher reports that one.
"""

from __future__ import annotations

import signal

from ..board import Identity
from ..processes.kill import send_verified
from .deadlines import SECOND


class Terminator:
    """What was signalled in this cycle."""

    def __init__(self, termination: int, grace: float) -> None:
        """`termination` is the first signal, `grace` the seconds between it and SIGKILL."""
        self.termination, self.grace = termination, grace
        self._pending: dict[Identity, int] = {}  # when SIGKILL follows, in monotonic nanoseconds
        self._done: set[Identity] = set()

    @property
    def signal_name(self) -> str:
        """Name of the first signal."""
        return signal.Signals(self.termination).name

    def has_signalled(self, who: Identity) -> bool:
        """Whether this rank was signalled already."""
        return who in self._pending or who in self._done

    def terminate(self, who: Identity, now_ns: int) -> str | None:
        """Send the first signal; its name, or None when the process is not the one meant or is gone."""
        if self.termination == signal.SIGKILL:
            self._done.add(who)
        else:
            self._pending[who] = now_ns + int(self.grace * SECOND)
            # A stopped process acts on a signal only when it continues (SIGKILL needs no such help).
            send_verified(who.pid, who.start_time, signal.SIGCONT)
        sent = send_verified(who.pid, who.start_time, self.termination)
        return self.signal_name if sent else None

    def kill_expired(self, now_ns: int) -> list[Identity]:
        """SIGKILL for each rank whose grace period is over; returns those that still existed."""
        due = [who for who, at in self._pending.items() if at <= now_ns]
        for who in due:
            del self._pending[who]
            self._done.add(who)
        return [who for who in due if send_verified(who.pid, who.start_time, signal.SIGKILL)]

    def extend(self, by_ns: int) -> None:
        """The node was suspended: a grace period is time in which a rank could have ended."""
        self._pending = {who: at + by_ns for who, at in self._pending.items()}

    @property
    def next_ns(self) -> int | None:
        """When the next SIGKILL is due."""
        return min(self._pending.values(), default=None)

    def reset(self) -> None:
        """A new cycle: its ranks are other processes."""
        self._pending.clear()
        self._done.clear()
