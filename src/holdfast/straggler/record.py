"""A straggler report as the journal keeps it: what people look at later, in a bounded size. Pure.

What always holds: a record of 16,384 ranks is below 300 KB. Of every score it has the quantiles; of some ranks (the
worst, the best, those with a verdict) all scores; of each rank one figure, the overall score.

The *overall score* of a rank is its relative GPU score; where that is unknown, its lowest relative section score; where
relative scores were not asked for, the same of individual ones.

Does not cover: the exact scores of all ranks; `Report.to_dict` has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report, Scores

KIND = "straggler_report"
"""The kind of the journal's event."""

LISTED = 16
"""How many of the worst, and how many of the best ranks have all their scores."""

SECTIONS = 32
"""How many sections are kept: those with the lowest scores."""

VERDICTS = 64
"""How many verdicts are kept: nodes first, then the slowest ranks."""

QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)

GPU, SECTION = "gpu", "section"
RELATIVE, INDIVIDUAL = "relative", "individual"


@dataclass(frozen=True, slots=True)
class Column:
    """One score of all ranks: of the GPU or of a section, relative or individual."""

    of: str
    score: str
    scores: Scores
    section: str = ""


def record_of(report: Report) -> dict[str, Any]:
    """The fields of the journal's event for this report."""
    columns, left_out = _columns(report)
    verdicts = report.verdicts()
    named = [rank for verdict in verdicts for rank in verdict.ranks]
    return {
        "rank": report.rank,
        "gathered": report.gather_on_rank0,
        "elapsed_ms": round(report.generate_report_elapsed_time, 3),
        "kernels": _kernels(report),
        "verdicts": [asdict(verdict) for verdict in verdicts[:VERDICTS]],
        "withheld": list(report.withheld[:LISTED]),
        "sections_left_out": left_out,
        **summary(columns, report.rank_to_node, named),
    }


def summary(columns: Sequence[Column], nodes: Mapping[int, str], named: Sequence[int]) -> dict[str, Any]:
    """The scores of all ranks in a bounded size. `nodes` has all ranks, in order; `named` those with verdicts.

    Returns:
        `ranks` ([first, count] of each run of consecutive ranks), `nodes` (how many), `columns`, `rows` (all scores of
        some ranks, in the order of the columns, the worst rank first), and `overall` (thousandths, in the order of
        ranks, None where unknown).
    """
    overall = _overall(nodes, columns)
    order = _ascending(overall)
    shown = dict.fromkeys([*order[:LISTED], *order[-LISTED:], *named[:VERDICTS]])
    place = {rank: number for number, rank in enumerate(order)}
    return {
        "ranks": _runs(nodes),
        "nodes": len(set(nodes.values())),
        "columns": [_column(column) for column in columns],
        "rows": [
            [rank, nodes.get(rank, "?"), [_rounded(column.scores.get(rank)) for column in columns]]
            for rank in sorted(shown, key=lambda rank: place.get(rank, len(place)))
        ],
        "overall": [None if score is None else round(score * 1000) for score in overall.values()],
    }


def _kernels(report: Report) -> dict[str, Any]:
    """What the source of kernel times saw on the rank that has the report; only what there is."""
    found: dict[str, Any] = {"source": report.kernel_source}
    if report.kernel_records or report.kernel_source != "none":
        found |= {"records": report.kernel_records, "dropped": report.kernel_records_dropped}
    if _known(report.gpu_time_scored):
        found["share"] = round(report.gpu_time_scored, 3)
    texts = {"reason": report.kernel_source_reason, "note": report.kernel_note}
    return found | {name: text for name, text in texts.items() if text}


def _columns(report: Report) -> tuple[list[Column], int]:
    """The scores that were asked for and are known, and how many sections are left out."""
    found = [
        Column(GPU, score, scores)
        for score, scores in (
            (RELATIVE, report.gpu_relative_perf_scores),
            (INDIVIDUAL, report.gpu_individual_perf_scores),
        )
        if any(map(_known, scores.values()))
    ]
    relative, individual = report.section_relative_perf_scores, report.section_individual_perf_scores
    names = list(relative or individual)
    if len(names) > SECTIONS:
        kept = set(sorted(names, key=lambda name: _lowest((relative or individual)[name]))[:SECTIONS])
        names = [name for name in names if name in kept]
    for name in names:
        for score, scores in ((RELATIVE, relative), (INDIVIDUAL, individual)):
            if name in scores:
                found.append(Column(SECTION, score, scores[name], name))
    return found, len(relative or individual) - len(names)


def _column(column: Column) -> dict[str, Any]:
    order = _ascending(column.scores)
    head: dict[str, Any] = {"of": column.of, "score": column.score}
    if column.of == SECTION:
        head["section"] = column.section
    places = [math.floor(share * (len(order) - 1)) for share in QUANTILES] if order else []
    return head | {"quantiles": [_rounded(column.scores[order[place]]) for place in places]}


def _overall(ranks: Iterable[int], columns: Sequence[Column]) -> dict[int, float | None]:
    """The overall score of each rank, in their order."""
    found: dict[int, float | None] = dict.fromkeys(ranks)
    missing = list(found)
    for kind in ((RELATIVE, GPU), (RELATIVE, SECTION), (INDIVIDUAL, GPU), (INDIVIDUAL, SECTION)):
        tables = [column.scores for column in columns if (column.score, column.of) == kind]
        for scores in tables:
            for rank in missing:
                score, lowest = scores.get(rank, math.nan), found[rank]
                if score == score and (lowest is None or score < lowest):
                    found[rank] = score
        missing = [rank for rank in missing if found[rank] is None]
    return found


def _ascending(scores: Mapping[int, float] | Mapping[int, float | None]) -> list[int]:
    """The ranks whose score is known, the worst first."""
    known = {rank: score for rank, score in scores.items() if score is not None and score == score}
    return sorted(known, key=known.__getitem__)


def _lowest(scores: Scores) -> float:
    return min(filter(_known, scores.values()), default=math.inf)


def _runs(ranks: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([rank, 1])
    return runs


def _known(score: float) -> bool:
    return score == score


def _rounded(score: float | None) -> float | None:
    return round(score, 3) if score is not None and score == score else None
