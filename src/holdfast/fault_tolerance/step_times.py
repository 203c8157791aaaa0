"""What counted steps tell of the times of a cycle, and the limits that would be learned from them. Pure.

The time from the last step to the rank's end counts as one between two steps: a limit would have run in it as well.
Does not cover: ranks with fewer than two steps, and ranks that speak for themselves; their client learns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import limits as rules
from .board.records import Snapshot
from .limits import Floors, HeartbeatTimeouts

SECOND = 1e9


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of the ranks of one node in one cycle; seconds, each the longest of any rank."""

    ranks: int
    steps: int
    """The lowest number of any rank."""
    first: float
    """From a rank's start to the end of its first step."""
    longest: float
    """From the end of one step to that of the next, or to the rank's end."""

    def learned(self, before: HeartbeatTimeouts | None, factor: float, floors: Floors) -> HeartbeatTimeouts:
        """The limits that would follow `before`, those of an earlier job."""
        current = before or HeartbeatTimeouts()
        return rules.learn_heartbeats(current, self.first, self.longest, factor, floors)


def step_times(ended: Iterable[tuple[Snapshot, float]]) -> StepTimes | None:
    """Of these boards, each with its rank's end (monotonic seconds); None where nothing was counted."""
    seen = [
        (
            board.step,
            (board.first_step_ns - board.identity.started_ns) / SECOND,
            max(board.longest_step_ns / SECOND, end - board.last_heartbeat_ns / SECOND),
        )
        for board, end in ended
        if board.counted and board.identity is not None and board.step is not None and board.step > 1
    ]
    if not seen:
        return None
    steps, first, longest = zip(*seen, strict=True)
    return StepTimes(len(seen), min(steps), max(first), max(longest))
