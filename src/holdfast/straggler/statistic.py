"""The six figures that describe the times of one section or kernel in the window between two reports.

Pure. Does not cover: percentiles; a window's samples are not kept after its report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto


class Statistic(Enum):
    """One figure of a summary: of times, in milliseconds for sections and in microseconds for kernels; `NUM` is how
    often it ran and was measured.
    """

    MIN = auto()
    MAX = auto()
    MED = auto()
    AVG = auto()
    STD = auto()
    NUM = auto()

    # Members are singletons. Enum's own hash is Python code, which would be a third of the cost of a report.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Statistic.{self.name}"


Summary = Mapping[Statistic, float]


def summarise(times: Sequence[float], number: int | None = None) -> dict[Statistic, float]:
    """The summary of times in any unit, which is kept. Not for an empty sequence (ValueError).

    The median is the lower one of an even number; the deviation is unbiased, and NaN for a single time. `number` is
    how many there were if only the last were kept.
    """
    if not times:
        raise ValueError("a summary needs at least one time")
    ordered = sorted(times)
    count = len(ordered)
    mean = math.fsum(ordered) / count
    squares = math.fsum((time - mean) ** 2 for time in ordered)
    return {
        Statistic.MIN: ordered[0],
        Statistic.MAX: ordered[-1],
        Statistic.MED: ordered[(count - 1) // 2],
        Statistic.AVG: mean,
        Statistic.STD: math.sqrt(squares / (count - 1)) if count > 1 else math.nan,
        Statistic.NUM: count if number is None else number,
    }
