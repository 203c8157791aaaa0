"""The straggler reports of a run, as the journal keeps them, in order. Pure.

Where each rank has a report of its own (`gather_on_rank0=False`), those of one step are read as one of all ranks.
What always holds: texts are escaped, so that they can be shown; a record of a newer version, or one with parts that
cannot be understood, never spoils the others.

Does not cover: the exact scores of all ranks, which the journal does not have (see `straggler.record`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.journal.event import Event, cycles
from holdfast.visible import escaped

from ..record import KIND, Column, summary
from ..report import Verdict

MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading an event raises that is no report, or one of a newer version."""
MOST_RANKS = 2**31
"""Beyond every job; torch counts ranks in 32 bits."""


@dataclass(frozen=True)
class KeptReport:
    """One report. Scores are from 0 (worst) to 1 (best), None where unknown."""

    number: int
    """From 1, over all restart cycles of all runs in the directory."""
    t: float
    """When it was made: unix seconds."""
    run: int
    cycle: int
    elapsed_ms: float | None
    """What making it took on the rank that has it; the longest where there are several."""
    holders: tuple[int, ...]
    """The ranks that had it: rank 0, or each of them for itself."""
    kernels: tuple[Mapping[str, Any], ...]
    """What the sources of kernel times saw on these."""
    verdicts: tuple[Verdict, ...]
    """The first 64 of a report."""
    withheld: tuple[str, ...]
    nodes: int
    columns: tuple[Mapping[str, Any], ...]
    rows: tuple[tuple[int, str, tuple[float | None, ...]], ...]
    """Rank, node, and its scores in the order of the columns; the worst rank first. Not of all ranks."""
    overall: Mapping[int, float | None]
    sections_left_out: int = 0
    _key: tuple[Any, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        del found["_key"]
        found["ranks"] = list(found["overall"])
        found["overall"] = list(found["overall"].values())
        return found


def reports(events: Iterable[Event]) -> list[KeptReport]:
    """The reports in a journal, as `read_run` gives it."""
    groups: list[dict[int, KeptReport]] = []
    latest: dict[tuple[Any, ...], dict[int, KeptReport]] = {}  # of each step, who has told
    for cycle in cycles(events):
        for event in cycle.of_kind(KIND):
            try:
                report = _report(event, cycle.run)
            except MALFORMED:
                continue
            group = latest.get(report._key) if report._key else None
            if group is None or report.holders[0] in group:
                group = latest[report._key] = {}
                groups.append(group)
            group[report.holders[0]] = report
    found = [_together(list(group.values())) for group in groups]
    found.sort(key=lambda report: report.t)
    return [replace(report, number=number) for number, report in enumerate(found, 1)]


def scores_of_ranks(event: Event) -> dict[int, float | None]:
    """The `overall` of a report, from its event. Raises what is in `MALFORMED`."""
    overall = [None if value is None else _finite(value) / 1000 for value in event.fields["overall"]]
    return dict(zip(_ranks(event.fields["ranks"], len(overall)), overall, strict=True))


def _report(event: Event, run: int) -> KeptReport:
    cycle, elapsed = event.get("cycle"), event.get("elapsed_ms")
    kernels: Mapping[str, Any] = event.get("kernels", {})
    columns = tuple(_column(column) for column in event.fields["columns"])
    rows = [
        (int(rank), _text(node), tuple(None if score is None else _finite(score) for score in scores))
        for rank, node, scores in event.fields["rows"]
    ]
    if any(len(scores) != len(columns) for _, _, scores in rows):
        raise ValueError("rows that have not one score for each column")
    cycle = cycle if isinstance(cycle, int) else 0
    return KeptReport(
        number=0,
        t=_shown(event.t),
        run=run,
        cycle=cycle,
        elapsed_ms=_finite(elapsed) if isinstance(elapsed, (int, float)) else None,
        holders=(int(event.fields["rank"]),),
        kernels=({name: _text(one) if isinstance(one, str) else one for name, one in kernels.items()},),
        verdicts=tuple(map(_verdict, event.get("verdicts", []))),
        withheld=tuple(map(_text, event.get("withheld", []))),
        nodes=int(event.fields["nodes"]),
        columns=columns,
        rows=tuple(rows),
        overall=scores_of_ranks(event),
        sections_left_out=int(event.get("sections_left_out", 0)),
        _key=() if event.get("gathered", True) else (run, cycle, int(event.fields["report"])),
    )


def _ranks(runs: Iterable[Any], count: int) -> list[int]:
    """The ranks of these [first, count]; ValueError, before they are listed, if they are not so many."""
    spans = [range(int(first), int(first) + int(many)) for first, many in runs]
    if any(not 0 <= span.start < span.stop <= MOST_RANKS for span in spans) or sum(map(len, spans)) != count:
        raise ValueError("ranks that do not fit their scores")
    return [rank for span in spans for rank in span]


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no score")
    return number


def _text(value: object) -> str:
    """Names and sentences can be shown as they are: nothing in them acts on a terminal."""
    return escaped(str(value))


def _shown(t: float) -> float:
    """ValueError or OverflowError for a time that no calendar has."""
    try:
        datetime.fromtimestamp(t)
    except OSError as error:
        raise ValueError(f"{t!r} is no time") from error
    return t


def _verdict(told: Mapping[str, Any]) -> Verdict:
    rank, section = told["rank"], told.get("section")
    return Verdict(
        rank=None if rank is None else int(rank),
        node=_text(told["node"]),
        ranks=tuple(int(one) for one in told.get("ranks", [rank])),
        kind=_text(told["kind"]),
        slowdown=_finite(told["slowdown"]),
        since=int(told["since"]),
        evidence=_text(told["evidence"]),
        section=None if section is None else _text(section),
    )


def _column(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "of": str(told["of"]),
        "score": str(told["score"]),
        "section": _text(told.get("section", "")),
        "quantiles": [_finite(value) for value in told.get("quantiles", [])],
    }


def _together(parts: Sequence[KeptReport]) -> KeptReport:
    """The ranks' own reports of one step as one."""
    if len(parts) == 1:
        return parts[0]
    scores: dict[tuple[str, str, str], dict[int, float]] = {}
    nodes: dict[int, str] = {}
    for part in parts:
        titles = [(column["of"], column["score"], column["section"]) for column in part.columns]
        for rank, node, row in part.rows:
            nodes[rank] = node
            for title, score in zip(titles, row, strict=True):
                if score is not None:
                    scores.setdefault(title, {})[rank] = score
    columns = [Column(of, score, ranks, section) for (of, score, section), ranks in scores.items()]
    nodes = dict(sorted(nodes.items()))
    verdicts = tuple(verdict for part in parts for verdict in part.verdicts)
    made = summary(columns, nodes, [rank for verdict in verdicts for rank in verdict.ranks])
    overall = {rank: score for part in parts for rank, score in part.overall.items()}
    return replace(
        parts[0],
        t=max(part.t for part in parts),
        elapsed_ms=max((part.elapsed_ms for part in parts if part.elapsed_ms is not None), default=None),
        holders=tuple(rank for part in parts for rank in part.holders),
        kernels=tuple(facts for part in parts for facts in part.kernels),
        verdicts=verdicts,
        withheld=tuple(dict.fromkeys(why for part in parts for why in part.withheld)),
        nodes=made["nodes"],
        columns=tuple(_column(column) for column in made["columns"]),
        rows=tuple((rank, node, tuple(row)) for rank, node, row in made["rows"]),
        overall=dict(sorted(overall.items())),
    )
