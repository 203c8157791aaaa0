"""The documented performance scores: reference time over this rank's time, from 0.0 (worst) to 1.0 (best).

Pure. With m the median time of a section or kernel in this window, its score is reference / m. The relative reference
is the least m of all ranks; the individual reference is the least m that this rank ever had, this window included. A
GPU's score is the mean of its kernels' scores, weighted by the time that this rank spent in each (NUM × AVG).

What has no reference has the score NaN: a section or kernel that some rank did not run, a GPU without a common kernel.
A median that is not above zero counts as no measurement. NaN is below no threshold.
Does not cover: noise. The least of many ranks is an extreme, so the relative scores of healthy ranks fall as ranks are
added.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from .statistic import Statistic, Summary

Name = TypeVar("Name", bound=Hashable)

MOST_REMEMBERED = 20_000
"""Best times remembered of sections, and of kernels; beyond it, only of those in the latest window."""


def medians(summaries: Mapping[Name, Summary]) -> dict[Name, float]:
    """The median of each, where there is one above zero."""
    found = ((name, summary[Statistic.MED]) for name, summary in summaries.items())
    return {name: median for name, median in found if median > 0}


def section_scores(
    names: Iterable[str], times: Mapping[str, float], references: Mapping[str, float]
) -> dict[str, float]:
    """The score of each named section; `times` are this rank's medians."""
    return {
        name: references[name] / times[name] if name in times and name in references else math.nan
        for name in names
    }


def weights(kernels: Mapping[Name, Summary]) -> dict[Name, float]:
    """The time that this rank spent in each kernel."""
    return {name: one[Statistic.NUM] * one[Statistic.AVG] for name, one in kernels.items()}


def gpu_score(
    times: Mapping[Name, float], weights: Mapping[Name, float], references: Mapping[Name, float]
) -> float:
    """The weighted mean over the kernels that have a time, this rank's median, and a reference; NaN if none has."""
    common = [name for name in times if name in references]
    total = math.fsum(weights[name] for name in common)
    weighted = math.fsum(weights[name] * references[name] / times[name] for name in common)
    return weighted / total if total > 0 else math.nan


class Best(Generic[Name]):
    """The least median of each section or kernel that this rank ever had."""

    def __init__(self) -> None:
        self._least: dict[Name, float] = {}

    def update(self, times: Mapping[Name, float]) -> dict[Name, float]:
        """Take a window's medians in; the references for that window."""
        for name, time in times.items():
            self._least[name] = min(time, self._least.get(name, time))
        now = {name: self._least[name] for name in times}
        if (
            len(self._least) > MOST_REMEMBERED
        ):  # kernels are named after their grid, which may change for ever
            self._least = dict(now)
        return now
