"""The straggler reports of a job, folded to what a page can show: groups of ranks over groups of reports. Pure.

A cell has the lowest score of its ranks in its reports, so that one slow rank of thousands is seen. At most `2 * MOST`
columns are kept at a time, whatever the journal has.
Does not cover: who was named as slow, and why; `holdfast stragglers` has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..journal.event import Event
from ..straggler.readings.kept import MALFORMED, scores_of_ranks

MOST = 96
"""Rows, and columns, at most."""
MOST_RANKS = 1 << 20
UNKNOWN = 1001
"""Thousandths: more than any score, so that the lowest of several is a known one."""


@dataclass(slots=True)
class Column:
    """One report, or several in a row. Times are unix seconds."""

    begun: float
    ended: float
    key: tuple[object, object, object] | None
    """Node-independent name of the report, under which each rank may have a part of its own."""
    scores: array[int] = field(default_factory=lambda: array("h"))
    """By rank, in thousandths."""

    def add(self, other: Column) -> None:
        """Fold another one into this: the lower score of each rank."""
        self.scores.extend([UNKNOWN] * (len(other.scores) - len(self.scores)))
        for rank, score in enumerate(other.scores):
            self.scores[rank] = min(self.scores[rank], score)
        self.begun, self.ended = min(self.begun, other.begun), max(self.ended, other.ended)


@dataclass(frozen=True, slots=True)
class HeatMap:
    """`rows` are the first and last rank of each, `cells` their lowest scores (0 to 1; None: unknown) by column."""

    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[float, float], ...]
    cells: tuple[tuple[float | None, ...], ...]
    reports: int


def heat_map(events: Iterable[Event]) -> HeatMap | None:
    """Fold `straggler_report` events, in the order of time; None without any that can be understood."""
    columns: list[Column] = []
    reports = each = 0
    size = 1  # reports of a column
    for event in events:
        try:
            column = _column(event)
        except MALFORMED:
            continue
        if columns and column.key == columns[-1].key:
            columns[-1].add(column)  # the report of another rank on the same steps
            continue
        reports += 1
        if columns and each < size:
            columns[-1].add(column)
            columns[-1].key = column.key
            each += 1
            continue
        columns.append(column)
        each = 1
        if len(columns) > MOST:
            for first, second in zip(columns[::2], columns[1::2], strict=False):
                first.add(second)
                first.key = second.key
            each = size * 2 if len(columns) % 2 == 0 else size
            columns, size = columns[::2], size * 2
    if not columns:
        return None
    world = max(len(column.scores) for column in columns)
    step = -(-world // MOST)
    step = step if step <= 8 else -(-step // 8) * 8  # 8 is the usual number of ranks of a node
    rows = [(first, min(first + step, world) - 1) for first in range(0, world, step)]
    return HeatMap(
        rows=tuple(rows),
        columns=tuple((column.begun, column.ended) for column in columns),
        cells=tuple(
            tuple(_lowest(column.scores[first : last + 1]) for column in columns) for first, last in rows
        ),
        reports=reports,
    )


def _lowest(scores: array[int]) -> float | None:
    lowest = min(scores, default=UNKNOWN)
    return None if lowest == UNKNOWN else lowest / 1000


def _column(event: Event) -> Column:
    scores = scores_of_ranks(event)
    size = max(scores, default=-1) + 1
    if not 0 < size <= MOST_RANKS:
        raise ValueError(f"{size} ranks")
    key = (event.get("cycle"), event.get("report"), event.get("step"))
    column = Column(event.t, event.t, key, array("h", [UNKNOWN]) * size)
    for rank, score in scores.items():
        column.scores[rank] = UNKNOWN if score is None else round(1000 * min(max(score, 0.0), 1.0))
    return column
