"""Whether other nodes, and the store's host, are alive. Pure.

Each node writes a heartbeat to the store, a number that grows every second. Another node watches it by its own
monotonic clock: the clocks of two nodes are never compared. A heartbeat that does not move means that the launcher is
dead, suspended or unreachable. That alone is no reason to restart, because ranks may train while their launcher is
suspended. So the ranks of the observing node must have stopped making progress too.

Does not cover: local ranks without a board that keep a CPU busy, for which three times the limit is waited; and a
network so slow that a heartbeat does not move while the ranks wait: the node is taken for a lost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .messages import NEVER, Board

BEAT = 1.0
"""Seconds between two heartbeats."""
HOST_SILENT = 5.0
"""Seconds more than for a node before a store that does not answer is given up."""
IDLE_CPU = 0.05
"""CPU seconds per second below which ranks without a board count as idle."""
BUSY = 3.0
"""Times the limit for ranks without a board that keep a CPU busy, and where no rank runs."""


@dataclass(slots=True)
class LocalProgress:
    """The activity of the local ranks over one cycle.

    `idle_for`: seconds since any rank wrote to its board (None: no rank is connected). `longest_gap`: the longest such
    time after which a rank still wrote again.
    """

    idle_for: float | None = None
    cpu: float = 1.0
    longest_gap: float | None = None

    def update(self, boards: Mapping[int, Board], cpu: float) -> None:
        """Take the boards of now."""
        idle = min((board.idle_for for board in boards.values() if board.idle_for is not None), default=None)
        if idle is not None and self.idle_for is not None and idle < self.idle_for:
            self.longest_gap = max(self.longest_gap or 0.0, self.idle_for)
        self.idle_for, self.cpu = idle, cpu

    def patience(self, limit: float) -> float:
        """For how many seconds the heartbeat of another node may not move. Until a rank has written twice, its usual
        gap is taken to be `limit`."""
        if self.idle_for is not None:
            gap = limit if self.longest_gap is None else self.longest_gap
            return limit if self.idle_for >= max(limit / 2, 2 * gap) else NEVER
        return limit if self.cpu < IDLE_CPU else BUSY * limit


@dataclass(slots=True)
class StoreContact:
    """When the store last answered, and since when each watched heartbeat has not moved."""

    answered: float = 0.0
    since: dict[str, float] = field(default_factory=dict)  # by key
    has_moved: set[str] = field(default_factory=set)  # keys whose value changed while they were watched

    def stalled_for(self, key: str, now: float) -> float:
        """Seconds for which the value of this key has not moved, as of the last answer; from the first call on."""
        return self.answered - self.since.setdefault(key, now)

    def host_lost(self, patience: float, now: float) -> bool:
        """Whether the store has been silent for so long that this node must leave."""
        return now - self.answered >= HOST_SILENT + patience

    def moved(self, key: str, now: float) -> None:
        """The value of a key has changed."""
        if key in self.since:
            self.since[key] = now
            self.has_moved.add(key)

    def clear(self) -> None:
        """Forget all keys: the next phase watches others."""
        self.since.clear()
        self.has_moved.clear()
