"""Whether other nodes, and the store's host, are still there. Pure.

A node writes a number to the store that grows each second, its heartbeat. Another node compares it with itself, by its
own monotonic clock: the clocks of two nodes are never compared. A heartbeat that does not move means that the launcher
there is dead, suspended or unreachable. That alone is no reason to restart: ranks may train while a launcher is
suspended. So the observer's own ranks must have stopped making progress too.

Does not cover: local ranks without a board that keep a CPU busy, for which three times the limit is waited; and a node
whose heartbeat does not move because of a slow network while the ranks wait for each other: it looks like a lost one.
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
"""Times the limit for ranks without a board that keep a CPU busy, or that are done."""


@dataclass(frozen=True, slots=True)
class LocalProgress:
    """What the local ranks do.

    `idle_for` is the time in seconds since any rank reported (None: none is connected), `cpu` their CPU seconds per
    second, `longest_gap` the longest silence in seconds after which a rank still reported again.
    """

    idle_for: float | None
    cpu: float = 0.0
    longest_gap: float = 0.0

    def patience(self, limit: float) -> float:
        """For how many seconds a heartbeat of another node may stand still."""
        if self.idle_for is not None:
            return limit if self.idle_for >= max(limit / 2, 2 * self.longest_gap) else NEVER
        return limit if self.cpu < IDLE_CPU else BUSY * limit


DONE = LocalProgress(None, 1.0)
"""No rank runs here: nothing shows whether those of other nodes train."""


@dataclass(slots=True)
class Activity:
    """The reports of the local ranks over one cycle."""

    last: float | None = None
    longest: float | None = None

    def update(self, boards: Mapping[int, Board], cpu: float, limit: float, now: float) -> LocalProgress:
        """Progress from the boards of now. Until a rank has reported twice, its usual gap is taken to be `limit`."""
        reported = [board.activity for board in boards.values() if board.activity is not None]
        if not reported:
            return LocalProgress(None, cpu)
        latest = max(reported)
        if self.last is not None and latest > self.last:
            self.longest = max(self.longest or 0.0, latest - self.last)
        self.last = latest
        return LocalProgress(now - latest, cpu, limit if self.longest is None else self.longest)


@dataclass(slots=True)
class StoreContact:
    """When the store last answered, and since when each heartbeat that is watched has not moved."""

    answered: float = 0.0
    since: dict[str, float] = field(default_factory=dict)  # by key

    def still_for(self, key: str, now: float) -> float:
        """Seconds for which the value of this key has not moved, as of the last answer; from the first call on."""
        return self.answered - self.since.setdefault(key, now)

    def host_lost(self, progress: LocalProgress, limit: float, now: float) -> bool:
        """Whether the store has been silent for so long that this node must stop its ranks."""
        return now - self.answered >= HOST_SILENT + progress.patience(limit)
