"""The figures of a section's or kernel's times, and the documented scores of a rank, from 0.0 (worst) to 1.0 (best).

Pure. Scores are in one order on all ranks: relative before individual, the GPU's before the sections'.

With m the median time of a section or kernel in this window, its score is reference / m. The relative reference is the
least m of all ranks; the individual reference is the least m that this rank ever had, this window included. A GPU's
score is the mean of its kernels' scores, weighted by the time that this rank spent in each (NUM × AVG).

What has no reference has the score NaN: a section or kernel that some rank did not run, a GPU without a common kernel.
A median that is not above zero counts as no measurement. NaN is below no threshold.
Does not cover: noise. The least of many ranks is an extreme, so the relative scores of healthy ranks fall as ranks are
added.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar


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


# -- scores ---------------------------------------------------------------------------------------------------------

Name = TypeVar("Name", bound=Hashable)
Scores = dict[int, float]
"""By rank."""

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
        if len(self._least) > MOST_REMEMBERED:  # kernels are named after their grid, which may change forever
            self._least = dict(now)
        return now


@dataclass(frozen=True)
class Own:
    """What one rank measured in a window. Times are in a unit that all ranks share."""

    sections: Mapping[str, float] = field(default_factory=dict)
    """Medians."""
    waiting: Collection[str] = ()
    """Names of sections that wait for other ranks, which are known and never compared."""
    kernels: Mapping[int, float] = field(default_factory=dict)
    """Medians of kernels that compute, by key."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Of all kernels, those that wait as well, the share of this rank's kernel time, by key."""

    def share_of(self, kernels: Sequence[int]) -> float:
        """The share of some kernels together."""
        return math.fsum(self.shares.get(one, 0.0) for one in kernels)


@dataclass(frozen=True)
class References:
    """The least medians of all ranks, of what all ranks measured. `sections` are all names that are known, in the
    order that all ranks share; `judged` the keys of the kernels whose figures are gathered."""

    section_times: Mapping[str, float]
    kernel_times: Mapping[int, float]
    sections: tuple[str, ...] = ()
    waiting: frozenset[str] = frozenset()
    judged: tuple[int, ...] = ()
    steps: float | None = None
    """The greatest estimate of steps between reports; None while some rank has none."""
    still_judged: float = 1.0
    """What is left of the share of kernel time that judged kernels had when they were chosen, on the rank where that is
    least."""


class Scoring:
    """The scores that are asked for."""

    def __init__(self, relative: bool, individual: bool) -> None:
        self._relative, self._individual = relative, individual
        self._best_sections: Best[str] = Best()
        self._best_kernels: Best[int] = Best()

    def own(self, names: Sequence[str], mine: Own, references: References) -> list[float]:
        """This rank's scores in the window; `names` are the sections that have one."""
        times, gpu = mine.sections, (mine.kernels, mine.shares)
        best_sections = self._best_sections.update(times)
        best_kernels = self._best_kernels.update(mine.kernels)
        scores: list[float] = []
        if self._relative:
            scores.append(gpu_score(*gpu, references.kernel_times))
            scores += section_scores(names, times, references.section_times).values()
        if self._individual:
            scores.append(gpu_score(*gpu, best_kernels))
            scores += section_scores(names, times, best_sections).values()
        return scores

    def named(self, names: Sequence[str], scores: Sequence[Scores]) -> list[tuple[Scores, dict[str, Scores]]]:
        """Relative and individual scores of some ranks, from those of `own` in its order: the GPU's by rank, those of
        sections by section and rank; empty where they were not asked for."""
        rows, found = iter(scores), []
        for asked in (self._relative, self._individual):
            gpu = next(rows) if asked else {}
            found.append((gpu, {name: next(rows) for name in names} if asked else {}))
        return found


def scored_share(weights: Mapping[int, float], references: Mapping[int, float]) -> float:
    """The share of a GPU's time in kernels that compute for which there is a reference; NaN if it has none."""
    total = sum(weights.values())
    common = sum(weight for key, weight in weights.items() if key in references)
    return common / total if total > 0 else math.nan
