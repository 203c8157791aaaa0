"""When is a rank slow enough, surely enough and often enough? The numbers that every robust verdict must pass.

All of them must hold together: the size of the effect keeps harmless spread between chips out, the significance keeps
noise out whatever the number of ranks, and the persistence keeps one bad window out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a verdict takes. ValueError for a value outside its range.

    Does not cover: spread between healthy chips above about 2 % (one standard deviation); raise `min_slowdown` there.
    """

    min_slowdown: float = 1.10
    """Time over the group's reference, > 1. Healthy chips spread by 1–2 %: among 16,384 the slowest is at 1.08."""
    min_late_share: float = 0.05
    """Share of the group's busy time that the others must lose waiting for a rank, in (0, 1)."""
    min_cost_share: float = 0.05
    """A section counts only if its excess is this share of the time between two reports, in [0, 1). Shorter ones are
    noisy on a busy host, and cost the job little."""
    error_rate: float = 1e-3
    """Chance that noise passes the significance test in one window, over all ranks of a group, in (0, 0.1]. What noise
    does to a rank is independent between windows, and two windows are needed."""
    windows_needed: int = 2
    windows_kept: int = 3
    """A verdict needs `windows_needed` of the last `windows_kept` windows; >= 1."""
    warmup_windows: int = 1
    """Windows at the start that count for nothing: compilation, allocators, cold caches; >= 0."""
    min_ranks: int = 3
    """Fewer comparable ranks have no majority, so nobody can be the odd one out; >= 3."""
    min_keys: int = 3
    """Kernels that a rank must share with its group before its GPU is scored; >= 1."""
    min_samples: int = 3
    """Calls in the window before a median counts; >= 1."""
    max_blamed_share: float = 0.10
    """More slow ranks than this (and more than one) do different work, rather than the same work slowly; (0, 0.5)."""

    def __post_init__(self) -> None:
        for name, (allowed, holds) in _ALLOWED.items():
            value = getattr(self, name)
            if not (_is_number(value) and holds(value)):
                raise ValueError(f"straggler thresholds: {name} is {value!r}; allowed: {allowed}")
        for field in fields(self):
            if field.type == "int" and not isinstance(getattr(self, field.name), int):
                raise ValueError(
                    f"straggler thresholds: {field.name} is {getattr(self, field.name)!r}; allowed: a whole number"
                )
        if self.windows_needed > self.windows_kept:
            raise ValueError(
                f"straggler thresholds: windows_needed is {self.windows_needed}; "
                f"allowed: at most windows_kept, which is {self.windows_kept}"
            )

    @property
    def min_effect(self) -> float:
        """`min_slowdown` as a logarithm, the unit of all levels."""
        return math.log(self.min_slowdown)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_ALLOWED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "min_slowdown": ("greater than 1", lambda x: x > 1),
    "min_late_share": ("between 0 and 1", lambda x: 0 < x < 1),
    "min_cost_share": ("from 0 to below 1", lambda x: 0 <= x < 1),
    "error_rate": ("greater than 0, at most 0.1", lambda x: 0 < x <= 0.1),
    "windows_needed": ("1 or more", lambda x: x >= 1),
    "windows_kept": ("1 or more", lambda x: x >= 1),
    "warmup_windows": ("0 or more", lambda x: x >= 0),
    "min_ranks": ("3 or more", lambda x: x >= 3),
    "min_keys": ("1 or more", lambda x: x >= 1),
    "min_samples": ("1 or more", lambda x: x >= 1),
    "max_blamed_share": ("between 0 and 0.5", lambda x: 0 < x < 0.5),
}
