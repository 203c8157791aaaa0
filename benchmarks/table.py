"""Figures against their limits and their peers, the tables of the documentation, and where these go in a page. Pure.

Machines differ, so where a peer was measured in the same run the ratio is what counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Row:
    """One figure: the median of `ours`, in `unit`, beside the median of `peers` where there are any."""

    what: str
    unit: str
    ours: Sequence[float]
    peers: Sequence[float] = ()
    peer_name: str = ""
    limit: float | None = None
    """The aim: at most so much."""
    ratio: float | Fraction | None = None
    """The aim: at most this part of the peer's."""
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether all aims are reached; None where there is none."""
        limits = [] if self.limit is None else [self.limit]
        if self.ratio is not None and self.peers:
            limits.append(float(self.ratio) * median(self.peers))
        return median(self.ours) <= min(limits) if limits else None

    def cells(self) -> Iterable[str]:
        """Those of `markdown`."""
        mine = median(self.ours)
        yield f"{self.what} ({self.note})" if self.note else self.what
        yield f"{mine:.3g} {self.unit}"
        yield f"{median(self.peers):.3g} {self.unit} ({self.peer_name})" if self.peers else "–"
        yield f"{mine / median(self.peers):.2f}" if self.peers and median(self.peers) else "–"
        limit = [] if self.limit is None else [f"≤ {self.limit:.4g}"]
        ratio = [] if self.ratio is None else [f"≤ {self.ratio} ×"]
        yield ", ".join(limit + ratio) or "–"
        yield {None: "–", True: "yes", False: "**no**"}[self.reached]


def markdown(rows: Iterable[Row]) -> str:
    """The table of these figures."""
    head = ("figure", "Holdfast", "peer", "ratio", "aim", "reached")
    return table(head, [[*row.cells()] for row in rows])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Any table, in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def filled(page: str, text: str, begin: str, end: str) -> str:
    """The page with this text between its marks, each of which has a line. Raises ValueError where it has none."""
    before, begun, rest = page.partition(f"{begin}\n")
    _, ended, after = rest.partition(end)
    if not ended:
        raise ValueError(f"the page has no place for it: {begin} and {end} are missing")
    return f"{before}{begun}{text}\n{ended}{after}"


def median(values: Iterable[float]) -> float:
    """The middle value; NaN of none."""
    ordered = list(values)
    return statistics.median(ordered) if ordered else math.nan


def percentile(values: Iterable[float], percent: float) -> float:
    """The least of the values that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]
