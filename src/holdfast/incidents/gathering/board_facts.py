"""What a board's state and ring say, as facts of the evidence. Pure.

Always holds: no duration is negative, whatever a rank has scribbled over its own page.
Does not cover: reading the board.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...fault_tolerance.board.records import BoardEvent, Snapshot
from ..evidence import BoardFacts, OpenSection, RingEvent

SECOND = 1_000_000_000
RECENT = 60.0
"""Seconds before the incident of which the events are told."""


def board_facts(
    board: Snapshot, events: Iterable[BoardEvent], now_ns: int, before: Snapshot | None = None
) -> BoardFacts:
    """Facts that count back from `now_ns` (monotonic). `before` is an earlier look, to see what moves."""
    started = board.identity.started_ns if board.identity else 0
    active = max(board.last_activity_ns, started)
    return BoardFacts(
        connected=board.connected,
        finished=board.finished,
        heartbeats=board.heartbeat_count,
        step=board.step,
        counted=board.counted,
        checkpoints=board.checkpoints,
        sections=tuple(OpenSection(each.name, _ago(each.since_ns, now_ns)) for each in board.open_sections),
        silent=_ago(active, now_ns),
        age=_ago(started, now_ns),
        moved=before is not None and _signs(board) != _signs(before),
        events=_recent(events, now_ns),
    )


def _recent(events: Iterable[BoardEvent], now_ns: int) -> tuple[RingEvent, ...]:
    """Those of the last minute. A ring has 512, and eight ranks' rings are to be told in milliseconds."""
    since = now_ns - int(RECENT * SECOND)
    return tuple(
        [
            RingEvent(each.kind, _ago(each.at_ns, now_ns), each.name, each.value)
            for each in events
            if each.at_ns >= since
        ]
    )


def _ago(moment_ns: int, now_ns: int) -> float:
    """Seconds; 0 for a moment that is unknown, and for one that came while we looked."""
    return round(max(now_ns - moment_ns, 0) / SECOND, 6) if moment_ns > 0 else 0.0


def _signs(board: Snapshot) -> tuple[object, ...]:
    return (
        board.connected,
        board.finished,
        board.heartbeat_count,
        board.step,
        board.section_count,
        board.checkpoints,
        board.open_sections,
        board.last_activity_ns,
    )
