"""The `progress` events of a cycle, from boards and times as values."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import (
    Board,
    BoardWriter,
    Identity,
    Limits,
    OpenSection,
    SectionTotal,
    Snapshot,
    layout,
)
from holdfast.fault_tolerance.launcher.progress import INTERVAL, ProgressLog
from holdfast.journal import event
from tests.boards import SECOND, START, at, connected, snapshot

BEGIN = START / SECOND
"""When the ranks are started, in seconds; `when(5)` is 5 seconds later."""


def when(seconds: float) -> float:
    return BEGIN + seconds


def rank(step: int | None = None, active: float = 0.0, **changes: Any) -> Snapshot:
    """The board of a rank at this step whose last activity was `active` seconds after its start."""
    return connected(0.0, step=step, heartbeat_count=1, last_activity_ns=at(active), **changes)


def totals(**sections: tuple[int, float]) -> dict[str, SectionTotal]:
    return {name: SectionTotal(count, round(spent * SECOND)) for name, (count, spent) in sections.items()}


def test_event_has_every_field_of_a_cycle() -> None:
    log = ProgressLog(3, when(0))
    assert log.due(when(1), {0: rank(), 1: rank()}) is None
    assert log.due(when(20), {0: rank(100, 20), 1: rank(100, 20)}) is None
    spent = totals(step=(1_400, 260.0), checkpointing=(2, 8.0))
    opened = (OpenSection("step", at(299.0)),)
    first = rank(
        1_500, 299.5, checkpoints=2, checkpoint_step=1_400, section_totals=spent, open_sections=opened
    )
    spent = totals(step=(1_399, 261.0), data=(1_400, 4.25))
    second = rank(1_499, 297.0, checkpoints=3, checkpoint_step=1_450, section_totals=spent)
    assert log.due(when(300), {0: first, 1: second}) == {
        "cycle": 3,
        "reason": "interval",
        "seconds": 300.0,
        "ranks": 2,
        "steps_least": 1_499,
        "steps_most": 1_500,
        "step_rate": 5.0,  # 1,400 steps in the 280 seconds since the first one
        "sections": {
            "checkpointing": {"seconds": 8.0, "count": 2},
            "data": {"seconds": 4.25, "count": 1_400},
            "step": {"seconds": 522.0, "count": 2_799},
        },
        "checkpoints": 2,
        "checkpoint_step": 1_400,
        "inactive": 3.0,
        "finished": None,
    }


@pytest.mark.parametrize(
    ("asked", "events"),
    [(range(1, 1_000), [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]), ([2_000, 2_001], [2_000])],
    ids=["each second", "after a long pause"],
)
def test_due_returns_one_event_per_interval(asked: Sequence[int], events: list[float]) -> None:
    log = ProgressLog(0, when(0))
    assert [second for second in asked if log.due(when(second), {0: rank(second)})] == events


@pytest.mark.parametrize("reason", ["incident", "cycle_end"])
def test_event_between_intervals_moves_the_next_one(reason: Any) -> None:
    log = ProgressLog(0, when(0))
    log.due(when(10), {0: rank(1)})
    found = log.event(when(110), {0: rank(201)}, reason)
    assert (found["reason"], found["seconds"], found["step_rate"]) == (reason, 110, 2.0)
    assert log.event(when(110), {0: rank(201)}, reason)["step_rate"] is None, "two at one moment"
    assert log.due(when(300), {0: rank(500)}) is None
    later = log.due(when(410), {0: rank(501)})
    assert later is not None and (later["seconds"], later["step_rate"]) == (300, 1.0)


@pytest.mark.parametrize(
    ("boards", "least", "most", "rate"),
    [
        ([], None, None, None),
        ([rank(), rank()], None, None, None),
        ([rank(30), rank()], 30, 30, 2.0),
        ([rank(30), rank(28), rank(29)], 28, 30, 2.0),
        ([rank(10), rank(10)], 10, 10, 0.0),
        ([rank(3)], 3, 3, None),
        ([rank(0)], 0, 0, None),
    ],
    ids=["no board", "no step", "one gives none", "apart", "none made", "numbered anew", "step 0"],
)
def test_steps_of_ranks(
    boards: list[Snapshot], least: int | None, most: int | None, rate: float | None
) -> None:
    log = ProgressLog(0, when(0))
    log.due(when(5), {0: rank(10), 1: rank()})
    found = log.event(when(15), dict(enumerate(boards)), "cycle_end")
    assert (found["ranks"], found["steps_least"], found["steps_most"]) == (len(boards), least, most)
    assert found["step_rate"] == rate


STEP = {"open_sections": (OpenSection("step", at(4.0)),)}
NESTED = {"open_sections": (OpenSection("outer", at(1.0)), OpenSection("inner", at(2.0)))}


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        (rank(), {}),
        (rank(section_totals=totals(step=(2, 3.0))), {"step": (3.0, 2)}),
        (rank(**STEP), {"step": (6.0, 0)}),
        (rank(section_totals=totals(step=(2, 3.0)), **STEP), {"step": (9.0, 2)}),
        (rank(**NESTED), {"outer": (9.0, 0), "inner": (8.0, 0)}),
        (rank(None, 5.0, finished=True, **STEP), {"step": (1.0, 0)}),
        (rank(open_sections=(OpenSection("step", at(99.0)),)), {"step": (0.0, 0)}),
    ],
    ids=["none", "closed", "open", "both", "nested", "supervision ended", "later than now"],
)
def test_sections_of_a_rank(board: Snapshot, expected: dict[str, tuple[float, int]]) -> None:
    found = ProgressLog(0, when(0)).event(when(10), {0: board}, "incident")
    assert {name: (each["seconds"], each["count"]) for name, each in found["sections"].items()} == expected


@pytest.mark.parametrize(
    ("saved", "checkpoints", "step"),
    [
        ([], 0, None),
        ([(0, None), (0, None)], 0, None),
        ([(2, 200), (0, None)], 2, 200),
        ([(2, 200), (1, 100)], 1, 100),
        ([(2, None), (3, None)], 2, None),
    ],
    ids=["no board", "none", "one rank saves", "one is not done", "no steps"],
)
def test_checkpoints_of_ranks(saved: list[tuple[int, Any]], checkpoints: int, step: int | None) -> None:
    boards = [rank(checkpoints=count, checkpoint_step=at_step) for count, at_step in saved]
    found = ProgressLog(0, when(0)).event(when(10), dict(enumerate(boards)), "cycle_end")
    assert (found["checkpoints"], found["checkpoint_step"]) == (checkpoints, step)


def test_inactive_is_that_of_the_longest_inactive_rank() -> None:
    log = ProgressLog(0, when(0))
    assert log.event(when(50), {0: rank(3, 48), 1: rank(3, 20), 2: snapshot()}, "incident")["inactive"] == 30
    assert log.event(when(51), {0: snapshot()}, "incident")["inactive"] is None


def test_counted_steps_are_marked() -> None:
    counted = snapshot(heartbeat_count=4, step=4, last_activity_ns=at(5))
    assert ProgressLog(0, when(0)).event(when(10), {0: counted}, "cycle_end")["counted"] is True
    assert "counted" not in ProgressLog(0, when(0)).event(when(10), {0: rank(4)}, "cycle_end")


@given(data=st.data())
def test_any_page_gives_a_line_of_the_journal(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A rank may scribble over its own page; the launcher may not fail because of it."""
    board = Board.create(str(tmp_path_factory.mktemp("scribbled") / "0.board"), Limits())
    try:
        board.bind_process(Identity(1, 1, 0, 0, 0, 1))
        writer = BoardWriter(board.path)
        writer.connect()
        writer.heartbeat(4)
        for name in ("checkpointing", "step"):
            writer.start_section(name)
        writer.end_section("checkpointing")
        writer.detach()
        with open(board.path, "r+b") as file:
            file.seek(layout.IDENTITY_BYTES + 8 * data.draw(st.integers(0, layout.STATE_WORDS - 40)))
            file.write(data.draw(st.binary(min_size=1, max_size=320)))
        fields = ProgressLog(0, when(0)).event(when(10), {0: board.snapshot()}, "incident")
        json.loads(event.encode("progress", fields, t=1.0, mono=1.0, node="n"))
    finally:
        board.close()
        os.unlink(board.path)
