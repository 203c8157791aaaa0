"""Ranks over time as a table that a picture has room for. Pure.

What always holds: a cell shows the worst of the ranks and reports that it stands for, so one slow rank among thousands
is seen; it is None where nothing is known.

Does not cover: which rank of a cell it is; verdicts name ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from .kept import KeptReport

ROWS, COLUMNS = 512, 480
"""The most that are told apart."""

ALONE = 60.0
"""Seconds that a single report is taken to cover."""


@dataclass(frozen=True)
class Column:
    """What reports say that follow each other without a break: from `start` to `end`, unix seconds."""

    start: float
    end: float
    scores: tuple[float | None, ...]
    """Of each row, from 0 (worst) to 1."""


@dataclass(frozen=True)
class Mark:
    """A time in which a rank was named, from `start` to `end`, unix seconds."""

    rank: int
    node: str
    row: int
    start: float
    end: float
    slowdown: float
    """The most of that time."""


@dataclass(frozen=True)
class HeatMap:
    """The table: columns in the order of time, rows in the order of ranks."""

    ranks: tuple[int, ...]
    per_row: int
    """Ranks in each row; the last may have fewer."""
    per_column: int
    """Reports in each column, at most."""
    columns: tuple[Column, ...]
    marks: tuple[Mark, ...]
    restarts: tuple[tuple[float, int], ...]
    """When the first report of a further cycle begins, and the cycle."""

    @property
    def rows(self) -> int:
        """How many."""
        return -(-len(self.ranks) // self.per_row)


def heat_map(told: Sequence[KeptReport], rows: int = ROWS, columns: int = COLUMNS) -> HeatMap:
    """The table of these reports, of at most so many rows and about so many columns; at least one report."""
    ranks = tuple(sorted({rank for report in told for rank in report.overall}))
    per_row, per_column = -(-len(ranks) // rows), -(-len(told) // columns)
    row_of = {rank: place // per_row for place, rank in enumerate(ranks)}
    count = -(-len(ranks) // per_row)
    spans = _spans(told)
    found: list[Column] = []
    size = 0  # reports in the last column
    for report, (start, end) in zip(told, spans, strict=True):
        scores = _worst(report.overall, row_of, count)
        if found and size < per_column and found[-1].end == start:
            merged = tuple(map(_lower, found[-1].scores, scores))
            found[-1] = Column(found[-1].start, end, merged)
            size += 1
        else:
            found.append(Column(start, end, tuple(scores)))
            size = 1
    restarts = tuple(
        (span[0], report.cycle)
        for before, report, span in zip(told, told[1:], spans[1:], strict=False)
        if _life(before) != _life(report)
    )
    return HeatMap(ranks, per_row, per_column, tuple(found), _marks(told, spans, row_of), restarts)


def _spans(told: Sequence[KeptReport]) -> list[tuple[float, float]]:
    """The time that each report is about: since the one before, unless there was a break."""
    pairs = [(before.t, report.t) for before, report in pairwise(told)]
    usual = median(max(0.0, end - start) for start, end in pairs) if pairs else ALONE
    usual = usual or ALONE
    spans = [(told[0].t - usual, told[0].t)]
    for before, report in pairwise(told):
        follows = _life(before) == _life(report) and report.t - before.t <= 2 * usual
        start = before.t if follows else max(before.t, report.t - usual)
        spans.append((start, max(start, report.t)))
    return spans


def _life(report: KeptReport) -> tuple[int, int]:
    return report.run, report.cycle


def _worst(overall: Mapping[int, float | None], row_of: Mapping[int, int], rows: int) -> list[float | None]:
    worst: list[float | None] = [None] * rows
    for rank, score in overall.items():
        row = row_of[rank]
        worst[row] = _lower(worst[row], score)
    return worst


def _lower(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _marks(
    told: Sequence[KeptReport], spans: Sequence[tuple[float, float]], row_of: Mapping[int, int]
) -> tuple[Mark, ...]:
    """One for each rank and time in which it was named without a break."""
    done: list[Mark] = []
    going: dict[int, Mark] = {}
    for report, (start, end) in zip(told, spans, strict=True):
        now: dict[int, Mark] = {}
        for rank, verdict in [(rank, one) for one in report.verdicts for rank in one.ranks]:
            if rank not in row_of:
                continue
            before = now.get(rank) or going.get(rank)
            if before is not None and before.end < start:
                done.append(before)
                before = None
            begun = before.start if before else start
            slowdown = max(verdict.slowdown, before.slowdown if before else 0.0)
            now[rank] = Mark(rank, verdict.node, row_of[rank], begun, end, slowdown)
        done += [mark for rank, mark in going.items() if rank not in now]
        going = now
    return tuple(sorted([*done, *going.values()], key=lambda mark: (mark.start, mark.rank)))


def frames(marks: Sequence[Mark]) -> list[tuple[Mark, Mark]]:
    """The first and the last of each series of ranks that were named together."""
    found: list[tuple[Mark, Mark]] = []
    for mark in sorted(marks, key=lambda mark: (mark.start, mark.end, mark.rank)):
        if found:
            first, last = found[-1]
            if (last.start, last.end) == (mark.start, mark.end) and mark.row - last.row <= 1:
                found[-1] = first, mark
                continue
        found.append((mark, mark))
    return found


def labels(found: HeatMap, most: int) -> list[tuple[int, str]]:
    """Row and text for each node with named ranks, those that were named longest; in the order of rows."""
    nodes: dict[str, list[Mark]] = {}
    for mark in found.marks:
        nodes.setdefault(mark.node, []).append(mark)
    longest = sorted(nodes.values(), key=lambda marks: -sum(mark.end - mark.start for mark in marks))
    texts = []
    for marks in longest[:most]:
        ranks = sorted({mark.rank for mark in marks})
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks from {ranks[0]}"
        worst = max(mark.slowdown for mark in marks)
        texts.append((min(mark.row for mark in marks), f"{who}, {worst:.2f}x\n{marks[0].node}"))
    texts.sort()
    if len(longest) > most:
        texts.append((found.rows - 1, f"and ranks on\n{len(longest) - most} more nodes"))
    return texts
