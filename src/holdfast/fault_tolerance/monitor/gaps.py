"""Stretches in which the whole world stood still: they count for nobody.

A suspended job, a frozen cgroup, a paused machine, a monitor that was stopped or replaced: from inside they look the
same, nobody looked at the boards for longer than was planned. A frozen world must not look like a hang, so every
interval that runs gets the whole stretch back, from the last look on: who was within a limit then is within it now.
Pure; times are monotonic nanoseconds.
Does not cover: a world that stood still for less than about two seconds, the planned sleep plus `OVERSLEPT`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SECOND = 1_000_000_000
OVERSLEPT = 1 * SECOND  # a look that comes this much later than planned means that the world stood still
THAW = 1 * SECOND  # what was caught in a gap has at least this long after it: everybody wakes up at once
KEPT = 100  # gaps that are remembered


def overslept(planned_ns: int, now_ns: int) -> bool:
    """Whether a look planned for `planned_ns` (0: none was) comes so late that the world stood still."""
    return planned_ns > 0 and now_ns - planned_ns > OVERSLEPT


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps so far, as (start, end), the oldest first."""

    gaps: tuple[tuple[int, int], ...] = ()

    def with_gap(self, start_ns: int, end_ns: int) -> Gaps:
        """These gaps and one more; only the last `KEPT` are remembered."""
        return Gaps((*self.gaps, (start_ns, end_ns))[-KEPT:])

    def since(self, start_ns: int) -> int:
        """How long the world stood still after `start_ns`."""
        return sum(end - max(start, start_ns) for start, end in self._caught(start_ns))

    def deadline(self, since_ns: int, length_ns: int) -> int:
        """When an interval that began at `since_ns` has lasted `length_ns` without the gaps in it."""
        at = since_ns + length_ns + self.since(since_ns)
        return max((at, *(end + THAW for _, end in self._caught(since_ns))))

    def _caught(self, start_ns: int) -> Iterable[tuple[int, int]]:
        return ((start, end) for start, end in self.gaps if end > start_ns)
