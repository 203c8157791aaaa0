"""The thresholds of a slow rank, and Student's quantile without scipy.

This module imports no numpy, so that ranks other than rank 0 need not load it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What it takes to be named. ValueError for a value outside its range.

    Does not cover: standing differences between healthy chips above `min_slowdown`; raise it there.
    """

    min_slowdown: float = 1.10
    """Time over that of the others, greater than 1. Healthy chips spread by 1–2 %: of 16,384 the slowest is at 1.08."""
    min_cost_share: float = 0.05
    """A signal counts only if it is this share of the summed signals of its rank, in [0, 1)."""
    error_rate: float = 1e-3
    """Chance of a false name in one report, all ranks and signals together, in (0, 0.1]."""
    noise_floor: float = 0.005
    """The least standard deviation between windows that is believed, as a share of the time, in [0, 1]."""
    min_ranks: int = 3
    """Fewer ranks that do the same work have no majority; 3 or more."""
    min_samples: int = 3
    """Runs of a section or kernel in a report before its time counts; 1 or more. `find_stragglers` does not use it."""
    warmup_windows: int = 1
    """Reports at the start that count for nothing: compilation, allocators, cold caches; 0 or more. Nor this."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, (allowed, lowest, highest) = getattr(self, one.name), _ALLOWED[one.name]
            number = isinstance(value, int if one.type == "int" else (int, float)) and not isinstance(
                value, bool
            )
            if not (number and lowest <= value <= highest):
                raise ValueError(f"straggler thresholds: {one.name} is {value!r}; allowed: {allowed}")


_ALLOWED = {
    "min_slowdown": ("greater than 1", math.nextafter(1, 2), 1e6),
    "min_cost_share": ("from 0 to below 1", 0, math.nextafter(1, 0)),
    "error_rate": ("greater than 0, at most 0.1", 1e-12, 0.1),
    "noise_floor": ("from 0 to 1", 0, 1),
    "min_ranks": ("a whole number from 3 on", 3, math.inf),
    "min_samples": ("a whole number from 1 on", 1, math.inf),
    "warmup_windows": ("a whole number from 0 on", 0, math.inf),
}


@lru_cache(maxsize=65536)
def student_quantile(chance: float, freedom: float) -> float:
    """The t that a Student variable of `freedom` (2 or more) degrees exceeds with `chance` (below 0.5).

    Source: G. W. Hill, Algorithm 396, Communications of the ACM 13 (1970). Within 0.3 % of the exact value for chances
    down to 1e-9; a test compares it with a table.
    """
    two = 2 * chance
    if freedom <= 2:
        return math.sqrt(2 / (two * (2 - two)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * two) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(chance)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = a * y * y
        y = math.expm1(y) if y > 0.002 else 0.5 * y * y + y
    else:
        y = (
            (
                1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
                + 0.5 / (freedom + 4)
            )
            * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
