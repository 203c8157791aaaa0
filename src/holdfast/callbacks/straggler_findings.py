"""What a straggler callback makes of one report: who is a straggler, what the log says, which metrics it gives. Pure.

GPU scores count where there are any. Where no GPU was measured, the section that the callback measures is scored by its
wall time instead, and all that is said of it names the section, so that nobody takes it for a GPU.
What always holds: a score of NaN is in no metric, and no straggler; sections of the program's own are not looked at.
Does not cover: the log's lines of verdicts, which the detector itself logs.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.straggler import log_texts
from holdfast.straggler.report import StragglerId

from .straggler_settings import SCORES_SHOWN

if TYPE_CHECKING:
    from holdfast.straggler.report import Report, Scores, Verdict

    from .straggler_settings import StragglerSettings

SUCCESSIVE = 3
"""Reports in a row with a low score that it takes to stop."""
SECTION = "training_step"
"""What the callback measures."""

Line = tuple[int, str]
"""A level of the module `logging`, and a text."""


@dataclass(frozen=True)
class Perspective:
    """One kind of score of all ranks, the ranks that are below its threshold, and how both are called."""

    metric: str
    title: str
    scores: Scores
    stragglers: frozenset[StragglerId]
    warning: str


@dataclass(frozen=True)
class Findings:
    """What one report is to the callback, relative scores first. `by_section`: no GPU was measured."""

    perspectives: tuple[Perspective, ...]
    by_section: bool

    @property
    def stragglers(self) -> frozenset[StragglerId]:
        """All ranks that are below a threshold."""
        return frozenset[StragglerId]().union(*(each.stragglers for each in self.perspectives))


class Confirmation:
    """Whether scores that were low in successive reports are confirmed by a verdict."""

    def __init__(self) -> None:
        self._low: deque[frozenset[StragglerId]] = deque(maxlen=SUCCESSIVE)

    def of(self, found: Findings, report: Report) -> list[Verdict]:
        """The verdicts of this report on ranks, or on nodes of ranks, that were below a threshold in the last
        `SUCCESSIVE` reports. Call it with every report."""
        self._low.append(found.stragglers)
        if len(self._low) < SUCCESSIVE:
            return []
        low = {one.rank for one in frozenset.intersection(*self._low)}
        return [verdict for verdict in report.verdicts() if low.intersection(verdict.ranks)]


def findings(report: Report, settings: StragglerSettings) -> Findings:
    """From rank 0's report."""
    by_section = not _gpus_measured(report)
    kinds = []
    if settings.relative:
        scores = report.gpu_relative_perf_scores
        if by_section:
            scores = report.section_relative_perf_scores.get(SECTION, {})
        below = _below(report, scores, settings.relative_threshold)
        kinds.append(_relative(scores, below, by_section))
    if settings.individual:
        scores = report.gpu_individual_perf_scores
        if by_section:
            scores = report.section_individual_perf_scores.get(SECTION, {})
        below = _below(report, scores, settings.individual_threshold)
        kinds.append(_individual(scores, below, by_section))
    return Findings(tuple(kinds), by_section)


def lines(found: Findings, report: Report, settings: StragglerSettings) -> Iterator[Line]:
    """What the log says of it."""
    for each in found.perspectives:
        if each.stragglers:
            yield logging.WARNING, each.warning
    if settings.shown or found.stragglers:
        shown = settings.shown or SCORES_SHOWN
        for each in found.perspectives:
            yield logging.INFO, log_texts.performance(each.title, each.scores, report.rank_to_node, shown)


def metrics(found: Findings) -> dict[str, float]:
    """The least, the median and the greatest score of each kind that has any."""
    result = {}
    for each in found.perspectives:
        known = [score for score in each.scores.values() if not math.isnan(score)]
        if known:
            result[f"{each.metric}/min"] = min(known)
            result[f"{each.metric}/median"] = statistics.median(known)
            result[f"{each.metric}/max"] = max(known)
    return result


def why_sections(report: Report) -> str:
    """Said once, where sections are scored."""
    reason = f" ({report.kernel_source_reason})" if report.kernel_source_reason else ""
    return (
        f"No GPU was measured{reason}: section {SECTION} is scored by its wall time instead, "
        "with the same thresholds"
    )


def _gpus_measured(report: Report) -> bool:
    if report.kernel_source != "none":
        return True  # a report in which ranks have no kernel in common has no scores, and the next one has
    scores = (*report.gpu_relative_perf_scores.values(), *report.gpu_individual_perf_scores.values())
    return any(not math.isnan(score) for score in scores)


def _below(report: Report, scores: Scores, threshold: float) -> frozenset[StragglerId]:
    return frozenset(
        StragglerId(rank, report.rank_to_node[rank]) for rank, score in scores.items() if score < threshold
    )


def _relative(scores: Scores, below: frozenset[StragglerId], by_section: bool) -> Perspective:
    if by_section:
        warning = log_texts.warning(f"Section {SECTION} is slower on some ranks", below)
        return Perspective(
            "section_relative_perf", f"Section relative performance ({SECTION})", scores, below, warning
        )
    warning = log_texts.relative_warning(below)
    return Perspective("gpu_relative_perf", log_texts.RELATIVE_TITLE, scores, below, warning)


def _individual(scores: Scores, below: frozenset[StragglerId], by_section: bool) -> Perspective:
    if by_section:
        warning = log_texts.warning(f"Section {SECTION} became slower on some ranks", below)
        return Perspective(
            "section_individual_perf", f"Section individual performance ({SECTION})", scores, below, warning
        )
    warning = log_texts.individual_warning(below)
    return Perspective("gpu_individual_perf", log_texts.INDIVIDUAL_TITLE, scores, below, warning)
