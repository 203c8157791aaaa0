"""The straggler reports of a job as a picture: groups of ranks over groups of reports. Pure.

A cell has the lowest score of its ranks in its reports, so that one slow rank of thousands is seen. Memory is 2 bytes
for each rank of each report.
Does not cover: who was named as slow, and why; `holdfast stragglers` has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..journal.event import Event
from ..straggler.readings.kept import MALFORMED, scores_of_ranks

MOST = 96
"""Rows, and columns, at most."""
MOST_RANKS = 1 << 20
SHADES = ((950, "h0"), (900, "h1"), (800, "h2"), (700, "h3"), (0, "h4"))
"""The least score of each shade, in thousandths."""
UNKNOWN = 1001
"""More than any score, so that the lowest of several is a known one."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A picture whose cells have a width and a height of 1."""

    reports: int
    times: Sequence[float]
    """Of the first, the middle and the last report, each once."""
    rows: Sequence[tuple[int, int]]
    """The first and last rank of each."""
    columns: int
    shapes: Mapping[str, str]
    """By shade; nothing where no score is known."""


def heat_map(events: Iterable[Event]) -> HeatMap | None:
    """Draw `straggler_report` events, in the order of time; None without any that can be understood."""
    reports: dict[tuple[object, ...], tuple[float, array[int]]] = {}
    for event in events:
        try:
            reported = scores_of_ranks(event)
            size = max(reported) + 1
            if size > MOST_RANKS:
                continue
        except MALFORMED:
            continue
        # Ranks may each have a report of their own on the same steps.
        key = tuple(str(event.get(name)) for name in ("cycle", "report", "step"))
        _, scores = reports.setdefault(key, (event.t, array("h")))
        scores.extend([UNKNOWN] * (size - len(scores)))
        for rank, score in reported.items():
            scores[rank] = UNKNOWN if score is None else round(1000 * min(max(score, 0.0), 1.0))
    if not reports:
        return None
    times, all_scores = zip(*reports.values(), strict=True)
    world = max(map(len, all_scores))
    step = -(-world // MOST)
    step = step if step <= 8 else -(-step // 8) * 8  # 8 is the usual number of ranks of a node
    rows = [(first, min(first + step, world) - 1) for first in range(0, world, step)]
    wide = -(-len(times) // MOST)
    columns = range(0, len(times), wide)
    shapes: dict[str, str] = {}
    for y, (first, last) in enumerate(rows):
        for x, begun in enumerate(columns):
            group = (
                min(each[first : last + 1], default=UNKNOWN) for each in all_scores[begun : begun + wide]
            )
            lowest = min(group)
            if lowest != UNKNOWN:
                shade = next(shade for least, shade in SHADES if lowest >= least)
                shapes[shade] = shapes.get(shade, "") + f"M{x} {y}h1v1h-1z"
    return HeatMap(
        len(times), sorted({times[0], times[len(times) // 2], times[-1]}), rows, len(columns), shapes
    )
