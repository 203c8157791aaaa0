"""When the next report is due, counted in steps, so that all ranks report in the same step without asking each other.

Pure: its input is the start of each step. After `ESTIMATION_STEPS` steps a rank knows how many of its steps make up the
interval; the ranks agree on the greatest such number once, then again within each report, since steps get faster after
warm-up and slower with longer sequences.
Does not cover: ranks that do not call in the same steps.
"""

from __future__ import annotations

import statistics
from collections import deque

ESTIMATION_STEPS = 16


class ReportInterval:
    """Counts the steps of one rank. Times are seconds of a monotonic clock."""

    def __init__(self, seconds: float, least_steps: int) -> None:
        """`seconds` between reports, 0 for as often as possible; never fewer than `least_steps` between two, so that
        something was measured."""
        self._seconds = seconds
        self._least_steps = least_steps
        self._lengths: deque[float] = deque(maxlen=ESTIMATION_STEPS)
        self._began: float | None = None
        self._step = 0
        self._steps: int | None = None
        self._due_at = 0

    @property
    def agreed(self) -> bool:
        """Whether the ranks have agreed on a number of steps."""
        return self._steps is not None

    def step(self, now: float) -> None:
        """A step begins."""
        if self._began is not None:
            self._lengths.append(now - self._began)
        self._began = now
        self._step += 1

    def resume(self, now: float) -> None:
        """A report was made within this step, which must not make the step look long."""
        self._began = now

    def estimate(self) -> float | None:
        """How many of this rank's steps make up the interval; None while it has seen too few."""
        if len(self._lengths) < ESTIMATION_STEPS:
            return None
        return self._seconds / max(statistics.median(self._lengths), 1e-9)

    def agree(self, greatest: float) -> None:
        """All ranks agreed on the greatest estimate."""
        steps = max(int(greatest), self._least_steps)
        if self._steps is None:
            self._due_at = -(-self._step // steps) * steps
        self._steps = steps

    def due(self) -> bool:
        """Whether a report belongs to this step. The next one is then counted from here."""
        if self._steps is None or self._step < self._due_at:
            return False
        self._due_at = self._step + self._steps
        return True
