"""Is another node gone? Decided by its counter and the observer's own monotonic clock, never by wall clocks. Pure.

A counter that stands still means the node's launcher is dead, stopped or unreachable. That alone is no reason to
restart: ranks may train on while a launcher is stopped. So the local ranks must have stopped progressing too: they
have been silent for longer than a healthy job of theirs, whose steps may well take minutes, ever was.
Does not cover: local ranks that spin on the CPU without a board, for which twice more patience is taken; and two
dead neighbours of which only the nearer one is watched (its loss restarts the job without both).
"""

from __future__ import annotations

from dataclasses import dataclass

IDLE_CPU = 0.05  # CPU seconds per second below which ranks without a board count as standing still
SPINNING = 3.0  # times the limit for ranks without a board that keep a CPU busy


@dataclass(frozen=True, slots=True)
class LocalProgress:
    """Seconds since any local rank last told something on its board (None: no rank is connected), the CPU seconds
    per second that the local ranks used lately, and for how long they have been silent before and went on."""

    silent: float | None
    cpu: float
    rhythm: float = 0.0

    def patience(self, limit: float) -> float:
        """For how many seconds a counter may stand still, given what the local ranks do."""
        if self.silent is not None:
            return limit if self.silent >= max(limit / 2, 2 * self.rhythm) else float("inf")
        return limit if self.cpu < IDLE_CPU else SPINNING * limit


@dataclass(slots=True)
class Rhythm:
    """How regularly the local ranks tell something. Times are monotonic seconds."""

    _last: float | None = None
    _longest: float | None = None

    def longest(self, activity: float, limit: float) -> float:
        """Note the last sign of life; returns the longest silence after which one came. While there was only one,
        nothing is known yet: then it is `limit`, so that ranks may be silent for twice as long."""
        if self._last is not None and activity > self._last:
            self._longest = max(self._longest or 0.0, activity - self._last)
        self._last = activity
        return limit if self._longest is None else self._longest


STANDING = LocalProgress(None, 0.0)
"""No rank runs here, or none moves."""
UNKNOWN = LocalProgress(None, 1.0)
"""Nothing to go by: the local ranks are done, those of other nodes may train on."""


@dataclass(slots=True)
class Neighbour:
    """The counter of one other node as seen from here. Times are monotonic seconds."""

    limit: float
    _counter: int = -1
    _moved: float = 0.0
    _looked: float = 0.0

    def stands_still(self, counter: int, now: float) -> float:
        """Note the counter; returns for how many seconds it has not moved.

        When this observer itself stood still (it was stopped, the machine was paused) the time starts anew.
        """
        if counter != self._counter or now - self._looked > self.limit / 2:
            self._counter, self._moved = counter, now
        self._looked = now
        return now - self._moved

    def gone(self, counter: int, now: float, local: LocalProgress) -> float | None:
        """Seconds waited when the node is to be given up, else None."""
        still = self.stands_still(counter, now)
        return still if still >= local.patience(self.limit) else None
