"""What a rank did in the last minute, from its board's ring: bars of sections, and moments. Pure.

What always holds: a bar lies within the window; a section whose begin or end the ring no longer has reaches to the
window's or the ring's border.

Does not cover: what the ring has lost; a ring of many short sections reaches back for less than a minute, and `since`
says from when on it tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..evidence import BoardFacts, Case, RankEvidence
from ..verdict import Verdict

WINDOW = 60.0
"""Seconds."""

MOST = 64
"""Lanes at most."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One section: from and to, seconds ago, and how deep it lies in others."""

    name: str
    begun: float
    ended: float
    depth: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's last minute."""

    rank: int
    bars: tuple[Bar, ...]
    moments: tuple[tuple[str, float], ...]
    """Kind (`step`, `heartbeat`, `checkpoint`, `mark`, `connect`, `finish`) and seconds ago."""
    since: float
    """Seconds ago from which on its ring tells."""


def lane(rank: RankEvidence) -> Lane | None:
    """None where there is no board, or its ring is empty."""
    if rank.board is None or not (rank.board.events or rank.board.sections):
        return None
    events = rank.board.events
    since = max((event.ago for event in events), default=0.0)
    moments = tuple((event.kind, event.ago) for event in events if event.kind not in ("start", "end"))
    return Lane(rank.rank, tuple(_bars(rank.board, min(since, WINDOW))), moments, min(since, WINDOW))


def _bars(board: BoardFacts, since: float) -> Iterable[Bar]:
    open_now: dict[str, float] = {}
    found: list[Bar] = []
    for event in board.events:
        if event.kind == "start":
            open_now.setdefault(event.name, event.ago)
        elif event.kind == "end":
            begun = open_now.pop(event.name, since)
            found.append(_bar(event.name, begun, event.ago, len(open_now)))
    for depth, section in enumerate(board.sections):
        found.append(_bar(section.name, section.seconds, 0.0, depth, is_open=True))
    return found


def _bar(name: str, begun: float, ended: float, depth: int, *, is_open: bool = False) -> Bar:
    return Bar(name, min(max(begun, ended), WINDOW), min(max(ended, 0.0), WINDOW), min(depth, 3), is_open)


def chosen(case: Case, verdict: Verdict) -> list[Lane]:
    """The culprit's lane first, then its neighbours by number, at most `MOST`."""
    ranks = list(case.ranks)
    centre = verdict.rank if verdict.rank is not None else (ranks[0].rank if ranks else 0)
    nearest = sorted(ranks, key=lambda rank: (abs(rank.rank - centre), rank.rank))
    lanes: list[Lane] = []
    for rank in nearest:
        if len(lanes) < MOST and (found := lane(rank)):
            lanes.append(found)
    return sorted(lanes, key=lambda found: (found.rank != verdict.rank, found.rank))
