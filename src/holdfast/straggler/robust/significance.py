"""Is a difference more than noise? Robust z values, and how large one must be among n ranks.

z is the distance from the median in units of the median absolute deviation (times 1.4826: the standard deviation of a
normal distribution). The critical value is the normal quantile for `error_rate` shared among all ranks, so a larger
world does not find more stragglers by chance; a small group needs a larger one.

Does not cover: a group in which half of the ranks are slow. Its median is slow, too.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from .window import Array

MAD_TO_SIGMA = 1.4826
_SMALL = (1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""By the number of values: how much too small the deviation of so few comes out (Croux & Rousseeuw, 1992)."""
LONG = 2048


@lru_cache(maxsize=4096)
def critical(ranks: int, error_rate: float, windows: int = 1) -> float:
    """The z that noise reaches on any of `ranks` ranks with a chance of `error_rate`; infinite below two ranks.

    The factor for small groups (8 ranks: 1.4, 4 ranks: 2) pays for part of the error of a spread that is estimated from
    few ranks, and shrinks with the number of `windows` that the estimate rests on. Below some 64 ranks the other part
    is paid for by the least spreads that are believed.
    """
    if ranks < 2:
        return float("inf")
    return NormalDist().inv_cdf(1 - error_rate / ranks) * (1 + 3 / ((ranks - 1) * windows))


def center_and_spread(known: Array) -> tuple[float, float]:
    """Median and robust standard deviation of values without NaN; NaN and NaN where there are none."""
    if not len(known):
        return float("nan"), float("nan")
    center, count = float(np.median(known)), len(known)
    correction = _SMALL[count] if count < len(_SMALL) else count / (count - 0.8)
    return center, MAD_TO_SIGMA * correction * float(np.median(np.abs(known - center)))


def row_medians(table: Array) -> Array:
    """Median of each row without its NaN; NaN for a row of nothing else.

    By sorting, which numpy does with vector instructions, and which leaves NaN at the end: several times as fast as
    `nanmedian`.
    """
    if not table.size:
        return np.full(len(table), np.nan, table.dtype)
    if table.shape[1] > LONG and not np.isnan(table).any():  # a few long rows: here selecting beats sorting
        selected: Array = np.median(table, axis=1)
        return selected
    ordered = np.sort(table, axis=1)
    known = ordered.shape[1] - np.isnan(ordered).sum(axis=1)
    rows = np.arange(len(ordered))
    low, high = ordered[rows, np.maximum(known - 1, 0) // 2], ordered[rows, np.minimum(known // 2, known - 1)]
    middle: Array = (low + high) / 2
    return middle


def column_medians(table: Array) -> Array:
    """Median of each column without its NaN; NaN for a column of nothing else."""
    return row_medians(np.ascontiguousarray(table.T))
