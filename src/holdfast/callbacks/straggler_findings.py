"""What one report is to the straggler callback: stragglers, the log's lines, metrics, and the nodes to leave out. Pure.

Texts are documented letter by letter, since programs search logs for them. GPU scores count where there are any; where
no GPU was measured, the section that the callback measures is scored by its wall time instead, and all that is said of
it names the section, so that it is not taken for a GPU.
What always holds: names are escaped, so that nothing of them acts on a terminal; a score of NaN is in no metric, and no
straggler; sections of the program's own are not looked at.
Does not cover: verdicts, whose lines the detector itself logs.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.straggler.report import StragglerId, ranks_text
from holdfast.visible import escaped

if TYPE_CHECKING:
    from holdfast.straggler.report import Report, Scores, Verdict

SECTION = "training_step"
"""What the callback measures."""
SCORES_SHOWN = 5
SUCCESSIVE = 3
"""Reports in a row with a low score that it takes to stop."""
TERMINATING = "Detected stragglers. Terminating training..."
CONFIRMED, SCORES = "confirmed", "scores"


@dataclass(frozen=True)
class StragglerSettings:
    """What the callback was asked for. `shown` is how many of the best and worst scores are listed; seconds."""

    report_time_interval: float
    relative: bool
    individual: bool
    shown: int
    relative_threshold: float
    individual_threshold: float
    stop_if_detected: bool
    metrics: bool
    profiling_interval: int
    logger_name: str | None
    stop_on: str = CONFIRMED

    @property
    def scores(self) -> list[str]:
        """What the detector is asked to compute."""
        asked = {"relative_perf_scores": self.relative, "individual_perf_scores": self.individual}
        return [name for name, wanted in asked.items() if wanted]


TEXTS = {
    "gpu_relative_perf": ("GPU relative performance", "Some GPUs have worse relative performance"),
    "gpu_individual_perf": ("GPU individual performance", "Some GPUs performance dropped"),
    "section_relative_perf": (
        f"Section relative performance ({SECTION})",
        f"Section {SECTION} is slower on some ranks",
    ),
    "section_individual_perf": (
        f"Section individual performance ({SECTION})",
        f"Section {SECTION} became slower on some ranks",
    ),
}
"""Of each metric the title of the list of its scores, and the warning. Those of GPUs are documented."""


@dataclass(frozen=True)
class Perspective:
    """One kind of score of all ranks, and the ranks that are below its threshold."""

    metric: str
    scores: Scores
    stragglers: frozenset[StragglerId]


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


_STOPPED = "the job was stopped for a straggler"
Fields = dict[str, Any]
"""Of an event `node_suspected`."""


def suspects(verdicts: Sequence[Verdict]) -> list[Fields]:
    """The nodes that these verdicts blame, one event each."""
    found: dict[str, Fields] = {}
    for one in verdicts:
        fields = found.setdefault(one.node, {"suspect": one.node, "ranks": [], "facts": _STOPPED})
        fields["ranks"] = sorted({*fields["ranks"], *one.ranks})
        fields["facts"] += f"; {one}"
    return list(found.values())


def suspects_by_score(found: Findings, report: Report) -> list[Fields]:
    """The nodes of ranks below a threshold, one event each; where that is every rank, no node is to blame."""
    by_node: dict[str, list[int]] = {}
    for one in sorted(found.stragglers, key=lambda one: one.rank):
        by_node.setdefault(one.node, []).append(one.rank)
    if len(found.stragglers) == len(report.rank_to_node):
        return []
    why = "below the threshold of a score in one report"
    return [
        {"suspect": node, "ranks": ranks, "facts": f"{_STOPPED}; {ranks_text(ranks, 8)} (node {node}): {why}"}
        for node, ranks in by_node.items()
    ]


def findings(report: Report, settings: StragglerSettings) -> Findings:
    """From rank 0's report."""
    by_section = not _gpus_measured(report)
    perspectives = []
    for kind in ("relative", "individual"):
        if not getattr(settings, kind):
            continue
        metric = f"{'section' if by_section else 'gpu'}_{kind}_perf"
        scores = getattr(report, f"{metric}_scores")
        scores = scores.get(SECTION, {}) if by_section else scores
        threshold = getattr(settings, f"{kind}_threshold")
        below = [rank for rank, score in scores.items() if score < threshold]
        stragglers = frozenset(StragglerId(rank, report.rank_to_node[rank]) for rank in below)
        perspectives.append(Perspective(metric, scores, stragglers))
    return Findings(tuple(perspectives), by_section)


def lines(found: Findings, report: Report, settings: StragglerSettings) -> Iterator[tuple[int, str]]:
    """What the log says of it: levels and texts."""
    for each in found.perspectives:
        if each.stragglers:
            yield logging.WARNING, warning(TEXTS[each.metric][1], each.stragglers)
    if settings.shown or found.stragglers:
        shown = settings.shown or SCORES_SHOWN
        for each in found.perspectives:
            title = TEXTS[each.metric][0]
            yield logging.INFO, performance(title, each.scores, report.rank_to_node, shown)


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


def performance(title: str, scores: Scores, nodes: Mapping[int, str], count: int) -> str:
    """The documented list of the `count` worst and best scores; of all, the worst first, where there are not more.

    Ranks whose score is NaN are not listed.
    """
    known = sorted((rank for rank, score in scores.items() if score == score), key=lambda rank: scores[rank])
    lines = [f"  Rank={rank} Node={escaped(nodes[rank])} Score={scores[rank]:.2f}" for rank in known]
    if not lines:
        lines = [f"  no score on any of {len(scores)} ranks"]
    elif len(lines) > 2 * count:
        lines = [
            f" Worst performing {count}/{len(scores)} ranks:",
            *lines[:count],
            f" Best performing {count}/{len(scores)} ranks:",
            *lines[::-1][:count],
        ]
    return "\n".join([f"\n{title}:", *lines])


def warning(what: str, stragglers: Iterable[StragglerId]) -> str:
    """The documented form of a warning about these ranks."""
    affected = ", ".join(repr(one) for one in sorted(stragglers, key=lambda one: one.rank))
    return f"STRAGGLER DETECTION WARNING: {what}. Affected ranks: {{{affected}}}"


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
