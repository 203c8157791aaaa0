"""The thresholds of a slow rank. This module imports no numpy, so that ranks other than rank 0 need not load it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


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
