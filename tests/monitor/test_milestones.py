"""What is reported of a rank, and that each fact is reported once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.fault_tolerance.board import BoardEvent, Limits, Request, Snapshot
from holdfast.fault_tolerance.monitor.deadlines import (
    Deadline,
    Milestones,
    Suspensions,
    deadlines,
    earliest,
    suspicion_at,
)

from .values import START, at, connected, snapshot


def news(seen: Milestones, board: Snapshot, *events: BoardEvent) -> list[dict[str, Any]]:
    return list(seen.poll(board, lambda: list(events)))


def event(kind: str, seconds: float, value: int = 0) -> BoardEvent:
    return BoardEvent(kind, at(seconds), "", value)


def moment(seconds: float) -> float:
    return (START + seconds * 1e9) / 1e9


def test_a_rank_that_has_done_nothing_is_no_news() -> None:
    assert news(Milestones(), snapshot()) == []


def test_each_milestone_is_told_once_with_the_moment_that_the_ring_has() -> None:
    seen = Milestones()
    ring = [
        event("connect", 1),
        event("start", 2),
        event("end", 3),
        event("heartbeat", 4),
        event("step", 5, 4181),
    ]
    board = connected(1, heartbeat_count=2, last_heartbeat_ns=at(5), section_count=1, step=4181)
    assert news(seen, board, *ring) == [
        {"event": "rank_connect", "at": moment(1)},
        {"event": "first_step", "at": moment(5), "step": 4181},
        {"event": "first_heartbeat", "at": moment(4)},
        {"event": "first_section", "at": moment(2)},
    ]
    assert news(seen, board, *ring) == []


STEPS = [event("step", second, 4180 + second) for second in range(1, 10)]
FIRSTS: dict[str, tuple[Snapshot, list[BoardEvent], dict[str, Any]]] = {
    "the ring's first step, not the board's latest": (
        connected(1, heartbeat_count=9, last_heartbeat_ns=at(9), step=4189),
        STEPS,
        {"event": "first_step", "at": moment(1), "step": 4181},
    ),
    "a heartbeat that gives its step": (
        connected(1, heartbeat_count=9, last_heartbeat_ns=at(9), step=9),
        [event("step", 3, 3), event("step", 9, 9)],
        {"event": "first_heartbeat", "at": moment(3)},
    ),
    "the last activity, where the ring has moved on": (
        connected(1, heartbeat_count=9000, last_heartbeat_ns=at(8), step=7, last_activity_ns=at(9)),
        [event("mark", 9)],
        {"event": "first_step", "at": moment(9), "step": 7},
    ),
    "a counted step": (
        snapshot(heartbeat_count=2, last_heartbeat_ns=at(9), step=2),
        [event("step", 3, 1), event("step", 9, 2)],
        {"event": "first_step", "at": moment(3), "step": 1, "counted": True},
    ),
}


@pytest.mark.parametrize("name", FIRSTS)
def test_first_of_a_kind_is(name: str) -> None:
    board, events, expected = FIRSTS[name]
    told = news(Milestones(), board, *events)
    assert expected in told
    assert board.connected == ("rank_connect" in [each["event"] for each in told])


def test_a_request_is_told_once_and_a_new_one_again() -> None:
    seen = Milestones()
    asked = snapshot(request=Request("exclude_this_node", "bad HBM"))
    assert news(seen, asked) == [
        {"event": "request", "action": "exclude_this_node", "description": "bad HBM"}
    ]
    assert news(seen, asked) == []
    again = snapshot(request=Request("shutdown_workload", "bad HBM"))
    assert [told["action"] for told in news(seen, again)] == ["shutdown_workload"]


def heartbeat_limit(last: float, limit: float = 10.0) -> Deadline:
    board = connected(heartbeat_count=1, last_heartbeat_ns=at(last), limits=Limits(subsequent=limit))
    found = earliest(deadlines(board, Suspensions()))
    assert found is not None
    return found


def test_a_rank_is_called_late_at_four_fifths_of_its_limit_once_for_each_interval() -> None:
    seen, deadline = Milestones(), heartbeat_limit(last=20)
    assert list(seen.suspicion(deadline, at(27.99))) == []
    assert list(seen.suspicion(deadline, at(28.01))) == [
        {"event": "suspicion", "reason": "heartbeat", "section": "", "waited": 8.01, "limit": 10.0}
    ]
    assert list(seen.suspicion(deadline, at(29))) == []
    assert list(seen.suspicion(heartbeat_limit(last=29), at(38))) != []


def test_after_a_gap_a_rank_is_late_that_much_later() -> None:
    board = connected(heartbeat_count=1, last_heartbeat_ns=at(2), limits=Limits(subsequent=10.0))
    moved = earliest(deadlines(board, Suspensions().plus(at(5), at(105))))
    assert moved is not None
    assert suspicion_at(moved) == pytest.approx(at(110), abs=1)
