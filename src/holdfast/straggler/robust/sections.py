"""How slow is each rank in each section? Each section by itself: data loading has nothing to do with the forward pass.

Does not cover: in which section of a synchronised step the time was first lost. A section that contains a collective
takes equally long everywhere; `lateness` sees through that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .reference import logarithms
from .significance import column_medians
from .window import Array, Selector, Window, cells

MEDIAN_ERROR = 1.25
"""Standard error of the median of n times, in units of their deviation / sqrt(n)."""


@dataclass(frozen=True)
class SectionLevels:
    """What the sections of one group say; every array is [members, sections]."""

    level: Array
    """log(own median / the group's); NaN where not measured, or by too few ranks."""
    mean_level: Array
    """The same of the mean time per call: rare long pauses move the mean and leave the median alone."""
    noise: Array
    """Of `level`, as far as the window itself tells: where the mean is far above the median, times have a long tail,
    and a median of few such times jumps. Of the rank or of the group's median rank, whichever is more."""
    excess: Array
    """Seconds in this window above the group's mean per call; 0 for a rank that is not slower."""
    cost: Array
    """The excess as a share of the whole time, or of the group's longest section where that is more."""
    seconds: Array
    """Of the median rank in this window [sections]; 0 where nobody can be compared."""


def section_levels(
    window: Window,
    members: NDArray[np.intp],
    sections: Selector,
    min_ranks: int,
    min_samples: int,
    whole: float = 0.0,
) -> SectionLevels:
    """Compare the ranks `members` in each section. `whole`: seconds that this window took, as far as is known."""
    counts = cells(window.counts, members, sections)
    totals = cells(window.totals, members, sections)
    level = logarithms(cells(window.medians, members, sections), counts, min_samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(np.isnan(level), np.nan, totals / counts)
    few = np.isfinite(level).sum(axis=0) < min_ranks
    level[:, few] = np.nan
    usual = column_medians(mean)
    excess = np.nan_to_num(np.maximum(mean - usual, 0) * counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_level = np.where(np.isnan(level), np.nan, np.log(mean / usual))
        tail = np.abs(np.log(mean) - level) * MEDIAN_ERROR / np.sqrt(counts)
    seconds = column_medians(np.where(np.isnan(level), np.nan, totals))
    longest = float(np.nanmax(seconds)) if np.isfinite(seconds).any() else float("inf")
    return SectionLevels(
        level=level - column_medians(level),
        mean_level=mean_level,
        noise=np.nan_to_num(np.fmax(tail, column_medians(tail))),
        excess=excess,
        cost=excess / max(longest, whole),
        seconds=np.nan_to_num(seconds),
    )
