"""What is normal for a group: for each kernel the median over its ranks, its spread, and how much it weighs.

One rank that is too fast moves no median, so it makes nobody else look slow. A large group's medians are taken over a
sample of its ranks: their error is then a few percent of the spread between ranks, which decides nothing, and the cost
does not grow with the world.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .significance import MAD_TO_SIGMA, column_medians
from .window import Array, Selector, Window, cells

MIN_SAMPLE, MAX_SAMPLE, ALL_SAMPLES = 64, 384, 4096
"""Ranks of a group that its medians are taken over, and about how many of all groups together."""
MAX_WEIGHT = 0.10
"""No kernel decides alone, however long it runs."""
MIN_SPREAD = 0.005


@dataclass(frozen=True)
class Reference:
    """One value per kernel of a group; everything in natural logarithms of seconds but for `weight` and `busy`."""

    level: Array
    """Median of the logarithms of the ranks' medians [keys]; 0 where `weight` is 0."""
    spread: Array
    """Robust standard deviation between ranks [keys]."""
    weight: Array
    """Share of the group's time [keys], each at most MAX_WEIGHT where there are enough keys; sums to 1, or to 0."""
    busy: float
    """Seconds that the median rank spent in kernels and collectives in this window."""

    @property
    def noise(self) -> float:
        """Standard deviation of a rank's level that the kernels' own spread explains."""
        return float(np.sqrt(np.sum((self.weight * self.spread) ** 2)))


def sample_size(groups: int) -> int:
    """How many ranks of each group are sampled where there are so many groups."""
    return max(MIN_SAMPLE, min(MAX_SAMPLE, ALL_SAMPLES // max(groups, 1)))


def sample_of(members: NDArray[np.intp], size: int = MAX_SAMPLE) -> NDArray[np.intp]:
    """At most `size` members. Drawn, because every n-th rank would often be the same slot of each node."""
    if len(members) <= size:
        return members
    drawn = np.random.default_rng(len(members)).choice(len(members), size, replace=False)
    return members[np.sort(drawn)]


def logarithms(medians: Array, counts: Array, min_samples: int) -> Array:
    """Natural logarithms as float32; NaN where there is no time, no positive time, or too few samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.log(medians, dtype=np.float32, casting="same_kind")
    table[~np.isfinite(table) | (counts < min_samples)] = np.nan
    return table


def reference_of(
    window: Window,
    members: NDArray[np.intp],
    kernels: Selector,
    collectives: Selector,
    min_ranks: int,
    min_samples: int,
    size: int = MAX_SAMPLE,
) -> Reference:
    """The reference of the ranks `members`, from at most `size` of them in `window`."""
    rows = sample_of(members, size)
    counts = cells(window.counts, rows, kernels)
    table = logarithms(cells(window.medians, rows, kernels), counts, min_samples)
    times = np.where(np.isnan(table), np.nan, cells(window.totals, rows, kernels))
    level = column_medians(table)
    spread = MAD_TO_SIGMA * column_medians(np.abs(table - level))
    common = np.isfinite(table).sum(axis=0) >= min_ranks
    seconds = np.where(common, np.nan_to_num(column_medians(times)), 0)
    waited = np.nan_to_num(cells(window.totals, rows, collectives)).sum(axis=1)
    return Reference(
        level=np.where(common, level, 0).astype(np.float32),
        spread=np.maximum(np.where(common, spread, 0), MIN_SPREAD).astype(np.float32),
        weight=_weights(seconds).astype(np.float32),
        busy=float(seconds.sum() + np.median(waited)) if len(rows) else 0.0,
    )


def _weights(seconds: Array) -> Array:
    """Shares of the time, none above MAX_WEIGHT (or above an equal share, where that is more)."""
    used = int((seconds > 0).sum())
    if not used:
        return np.zeros_like(seconds)
    share: Array = seconds / seconds.sum()
    for _ in range(4):  # cutting the largest makes the others larger shares
        share = np.minimum(share, max(MAX_WEIGHT, 1 / used))
        share = share / share.sum()
    return share
