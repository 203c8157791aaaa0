"""Windows taken together: what a few noisy ranks do not show in one window, several of them show.

A small group cannot tell from one window how much healthy ranks differ. Over the last windows each of its ranks has
been measured several times: the other ranks' scatter, from all these windows, is the measure for a suspect's difference
from them. The suspect's difference is a median over windows, the lower one: one bad window makes no straggler.

Always holds: with noise that is independent from window to window, the chance that a healthy rank passes is that of
passing two single windows.

Does not cover: groups beyond `MOST_RANKS` ranks, where one window is enough. Differences that last, between healthy
ranks, are covered up to the least spread that is believed, and as far as the others show them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from functools import lru_cache

import numpy as np

from .significance import center_and_spread, column_medians, critical, row_medians
from .thresholds import Thresholds
from .window import Array

KEPT = 8
MOST_RANKS = 16


class Pools:
    """Levels of the last windows, by what was measured in which group."""

    def __init__(self) -> None:
        self._past: dict[Hashable, deque[Array]] = {}

    def margin(self, name: Hashable, level: Array, floor: float, effect: float, rules: Thresholds) -> Array:
        """Take this window's levels of a group; how far each of its ranks passes, 1 is just [ranks].

        `floor` is the least lasting difference between healthy ranks that is believed, `effect` the least that counts.
        """
        if len(level) > MOST_RANKS:
            return np.zeros(len(level))
        past = self._past.setdefault(name, deque(maxlen=KEPT))
        if past and len(past[0]) != len(level):
            past.clear()
        past.append(np.array(level, float))
        margin = np.zeros(len(level))
        if len(past) < max(2, rules.windows_needed) or np.isfinite(level).sum() < rules.min_ranks:
            return margin
        for rank in np.flatnonzero(level - np.nanmedian(level) >= effect):  # who is not slow now is let go
            margin[rank] = _margin(np.stack(past), int(rank), floor, effect, rules)
        return margin

    def windows(self, name: Hashable) -> int:
        """How many windows are taken together."""
        return len(self._past.get(name, ()))

    def forget(self) -> None:
        """Start anew, when the groups have changed."""
        self._past.clear()


def _margin(levels: Array, rank: int, floor: float, effect: float, rules: Thresholds) -> float:
    """How far one rank passes, from `levels` [windows, ranks]."""
    others = np.delete(levels, rank, axis=1)
    whole = np.isfinite(levels[:, rank]) & (np.isfinite(others).sum(axis=1) >= rules.min_ranks - 1)
    if whole.sum() < max(2, rules.windows_needed):
        return 0.0
    others, own = others[whole], levels[whole, rank]
    windows, ranks = len(own), int(np.isfinite(others).sum(axis=1).min()) + 1
    middle = row_medians(others)
    difference = float(np.sort(own - middle)[(windows - 1) // 2])
    scatter = others - np.nanmean(others, axis=1, keepdims=True)
    freedom = int(np.isfinite(scatter).sum()) - windows
    noise = math.sqrt(float(np.nansum(scatter**2)) / freedom)
    agreeing = windows // 2 + 1  # so many windows show at least the lower median
    limit = noise * math.sqrt((1 + 1 / (ranks - 1)) / agreeing)
    chance = rules.error_rate**2 / ranks
    standing = column_medians(levels - row_medians(levels)[:, None])
    _, lasting = center_and_spread(standing[np.isfinite(standing)])
    return min(
        difference / effect,
        difference / max(limit * student(freedom, chance), 1e-12),
        difference / (max(floor, lasting) * critical(ranks, rules.error_rate, windows)),
    )


@lru_cache(maxsize=1024)
def student(freedom: int, chance: float) -> float:
    """What Student's t of so many degrees of freedom exceeds with this chance, in (0, 0.5)."""
    low, high = 0.0, 1.0
    while _tail(high, freedom) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > chance else (low, middle)
    return high


def _tail(t: float, freedom: int) -> float:
    """The chance of exceeding t: the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = 1.0 if freedom % 2 == 0 else cosine
    for number in range(2 + freedom % 2, freedom - 1, 2):
        term *= cosine**2 * (number - 1) / number
        total += term
    within = sine * (total if freedom > 1 else 0.0)
    if freedom % 2:
        within = 2 / math.pi * (angle + within)
    return max(0.0, (1 - within) / 2)
