"""One measured figure against its aim and its peer, and the table that goes into docs/benchmarks.md.

A figure is a median over several runs. Machines differ, so where a peer was measured in the same run the ratio
is what counts; an aim that needs no peer is an absolute bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`ours` and `peer` are medians in `unit`; `reached` is None where there is no aim."""

    what: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    aim: str = ""
    reached: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return self.ours / self.peer if self.peer else None


def median(values: Iterable[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """The least of the values that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| figure | Holdfast | peer | ratio | aim | reached |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = (
            f"{row.peer:.3g} {row.unit} ({row.peer_name})" if row.peer is not None else row.peer_name or "–"
        )
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
        reached = {None: "–", True: "yes", False: "**no**"}[row.reached]
        what = f"{row.what} ({row.note})" if row.note else row.what
        lines.append(
            f"| {what} | {row.ours:.3g} {row.unit} | {peer} | {ratio} | {row.aim or '–'} | {reached} |"
        )
    return "\n".join(lines)
