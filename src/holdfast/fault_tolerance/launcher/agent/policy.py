"""Restart or not? Pure decisions over one job, which may span nodes.

Does not cover: how a decision is agreed on between nodes (see :mod:`..nodes.records`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..nodes.records import END, PREEMPTED, RESTART, Record
from ..ranks.exits import DO_NOT_REQUEUE

MEMBERSHIP_INTERVAL = 30.0  # seconds between two restarts that only let a node join
MEMBERSHIP_BUDGET = 10  # such restarts in an hour: a flapping node must not restart a healthy job for ever
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a cycle came: the highest step and the number of checkpoints seen on this node's boards."""

    step: int = -1
    checkpoints: int = 0

    def beyond(self, before: Progress) -> bool:
        """Whether this cycle made progress that the one before had not."""
        return self.checkpoints > 0 or self.step > before.step


def may_restart(used: int, allowed: int) -> bool:
    """Whether one more restart is within ``--max-restarts``."""
    return used < allowed


def is_trouble(record: Record) -> bool:
    """Whether another node begins the next cycle, or ends the job, because something went wrong there."""
    if record.kind == END:
        return record.exit_code not in (0, DO_NOT_REQUEUE) and record.reason != PREEMPTED
    return record.kind == RESTART


@dataclass(slots=True)
class MembershipBudget:
    """Limits on restarts whose only reason is that a node wants to join. Times are monotonic seconds."""

    interval: float = MEMBERSHIP_INTERVAL
    budget: int = MEMBERSHIP_BUDGET
    _taken: deque[float] = field(default_factory=deque)

    def allows(self, now: float) -> bool:
        """Whether such a restart may happen now."""
        while self._taken and now - self._taken[0] > HOUR:
            self._taken.popleft()
        rested = not self._taken or now - self._taken[-1] >= self.interval
        return rested and len(self._taken) < self.budget

    def take(self, now: float) -> None:
        """One was begun."""
        self._taken.append(now)
