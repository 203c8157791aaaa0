"""The journal's `progress` events: what one node's ranks have done in a cycle so far. Pure.

A goodput figure is calculated from these events. A count or a total is of the cycle so far, so a lost event costs
nothing. Only `seconds` and `step_rate` are of the time since the event before.

The driver creates one `ProgressLog` per cycle and records what it returns:

- at most every second: `due`, for the event of each interval
- at an incident and at the end of the cycle, while the boards are still there: `event`

Does not cover: the time that ranks spent before a second process took over their board (a shell script that starts
one program after another); sections without a slot on the board (more than `layout.MAX_SECTIONS` names).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..board.values import Snapshot
from ..monitor.deadlines import SECOND

INTERVAL, SHOWN = 300.0, 10.0
"""Seconds between two events of a cycle, and between two that are shown until the next one, for a job that runs."""

Boards = Mapping[int, Snapshot]
"""By local rank."""

Reason = Literal["interval", "incident", "cycle_end"]


class ProgressLog:
    """The progress of one cycle on this node.

    Args:
        now: When its ranks were started; monotonic seconds, as in each call.
    """

    def __init__(self, cycle: int, now: float) -> None:
        self._cycle = cycle
        self._last_event = self._last_shown = now
        self._rate_from: tuple[float, int] | None = None
        """When the rate's time begins, and the highest step then; None before the first step."""

    def due(self, now: float, boards: Boards) -> dict[str, Any] | None:
        """The fields of an event once per interval, else None. Takes less than a microsecond when none is due."""
        if self._rate_from is None and (steps := _steps(boards)):
            self._rate_from = now, max(steps)
        if now - self._last_event < INTERVAL:
            return None
        return self.event(now, boards, "interval")

    def shown(self, now: float, boards: Boards) -> dict[str, Any] | None:
        """The fields of an event that takes the place of the one shown before, where one is due, else None."""
        if now - self._last_shown < SHOWN:
            return None
        self._last_shown = now
        return self._fields(now, boards, "interval")

    def event(self, now: float, boards: Boards, reason: Reason) -> dict[str, Any]:
        """The fields of an event at this moment.

        Args:
            reason: Why it is recorded; a closed set, for programs.
        """
        fields = self._fields(now, boards, reason)
        self._last_event = now
        self._rate_from = (now, max(steps)) if (steps := _steps(boards)) else None
        return fields

    def _fields(self, now: float, boards: Boards, reason: Reason) -> dict[str, Any]:
        steps = _steps(boards)
        counted = any(board.counted for board in boards.values())
        return {
            "cycle": self._cycle,
            "reason": reason,
            "seconds": round(now - self._last_event, 3),
            "ranks": len(boards),
            "steps_least": min(steps, default=None),
            "steps_most": max(steps, default=None),
            "step_rate": self._step_rate(now, steps),
            "sections": _sections(now, boards.values()),
            **_checkpoints(boards.values()),
            "inactive": _inactive(now, boards.values()),
            "finished": _finished(now, boards.values()),
            **({"counted": True} if counted else {}),  # as in `first_step`: from the start of each process
        }

    def _step_rate(self, now: float, steps: list[int]) -> float | None:
        """Steps per second; None before the first step, and where the program has begun to count anew."""
        if self._rate_from is None or not steps:
            return None
        since, step = self._rate_from
        made = max(steps) - step
        return round(made / (now - since), 6) if now > since and made >= 0 else None


def _steps(boards: Boards) -> list[int]:
    """The last step of each rank that has given one."""
    return [board.step for board in boards.values() if board.step is not None]


def _sections(now: float, boards: Iterable[Snapshot]) -> dict[str, dict[str, float]]:
    """Per section the time of all ranks together, and how often it was closed.

    A section that is open counts up to now, and where supervision has ended up to that end.
    """
    spent: dict[str, float] = {}
    count: dict[str, int] = {}
    for board in boards:
        for name, total in board.section_totals.items():
            spent[name] = spent.get(name, 0.0) + total.spent_ns / SECOND
            count[name] = count.get(name, 0) + total.count
        until = board.last_activity_ns / SECOND if board.finished else now
        for section in board.open_sections:
            spent[section.name] = spent.get(section.name, 0.0) + max(0.0, until - section.since_ns / SECOND)
    return {name: {"seconds": round(spent[name], 3), "count": count.get(name, 0)} for name in sorted(spent)}


def _checkpoints(boards: Iterable[Snapshot]) -> dict[str, int | None]:
    """How many checkpoints there are, and the step of the last one. Ranks that save none do not count.

    A checkpoint is complete when its last rank has saved, so both are the lowest of any rank that saves.
    """
    saved = [board for board in boards if board.checkpoints]
    steps = [board.checkpoint_step for board in saved if board.checkpoint_step is not None]
    return {
        "checkpoints": min((board.checkpoints for board in saved), default=0),
        "checkpoint_step": min(steps, default=None),
    }


def _inactive(now: float, boards: Iterable[Snapshot]) -> float | None:
    """Seconds since the last activity of the rank that has been inactive for longest: training had stopped by then."""
    last = min((board.last_activity_ns for board in boards if board.last_activity_ns), default=None)
    return None if last is None else round(max(0.0, now - last / SECOND), 3)


def _finished(now: float, boards: Iterable[Snapshot]) -> float | None:
    """Seconds since the last rank came to the end of its program; None while one of them has not."""
    ends = [board.main_ended_ns for board in boards]
    return round(max(0.0, now - max(ends) / SECOND), 3) if ends and all(ends) else None
