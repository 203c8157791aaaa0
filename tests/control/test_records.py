"""The next cycle record: budgets, the membership that it keeps or forms anew, and values of other versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.control.records import (
    CALL_OFF_BUDGET,
    FIRST,
    HOUR,
    JOIN_BUDGET,
    CycleRecord,
    Ending,
    Kind,
    Member,
    Membership,
    Settings,
    View,
    entries,
)

BEGAN = Ending(FIRST, Settings(Member("a"), max_restarts=3), began=True, job_time=100.0)


def _set(ending: Ending, **changes: Any) -> Ending:
    """As if the user had set this."""
    return replace(ending, settings=replace(ending.settings, **changes))


@pytest.mark.parametrize(
    ("used", "limit", "reset", "reached", "step", "checkpoints", "expected"),
    [
        (0, 1, False, -1, 5, 0, (Kind.RESTART, 1)),
        (1, 1, False, -1, 5, 0, (Kind.END, 1)),
        (0, 0, True, -1, 5, 0, (Kind.END, 0)),
        (3, 3, True, 5, 6, 0, (Kind.RESTART, 1)),
        (3, 3, True, 5, 5, 0, (Kind.END, 3)),
        (3, 3, True, 5, 2, 1, (Kind.RESTART, 1)),
        (2, 3, True, 5, -1, 0, (Kind.RESTART, 3)),
    ],
)
def test_restart_uses_the_budget_of_the_record(
    used: int, limit: int, reset: bool, reached: int, step: int, checkpoints: int, expected: tuple[Kind, int]
) -> None:
    """What counts stands in the record, whichever node writes the next one."""
    now = replace(FIRST, restarts=used, reached_step=reached)
    ending = replace(BEGAN, now=now, step=step, checkpoints=checkpoints)
    record = _set(ending, max_restarts=limit, reset_on_progress=reset).restart("it failed")
    assert (record.kind, record.restarts) == expected
    assert record.reached_step == max(reached, step)


@pytest.mark.parametrize(
    ("before", "stalled", "found", "steps", "most", "expected"),
    [
        (100, 1, 200, 5, 2, (Kind.RESTART, 0, 200)),  # progress
        (100, 0, 199, 5, 2, (Kind.RESTART, 1, 199)),  # less than the minimum
        (100, 1, 199, 5, 2, (Kind.END, 2, 199)),
        (100, 1, 100, 5, 0, (Kind.RESTART, 2, 100)),  # never
        (0, 0, 0, 5, 1, (Kind.END, 1, 0)),  # no checkpoint was ever written
        (100, 1, -1, 5, 2, (Kind.RESTART, 1, 100)),  # the file cannot be read
        (-1, 0, 700, 5, 1, (Kind.RESTART, 0, 700)),  # the first number that could be read
        (100, 1, 40, 5, 2, (Kind.END, 2, 40)),  # an older checkpoint was resumed
        (40, 1, 140, 5, 2, (Kind.RESTART, 0, 140)),
    ],
)
def test_failed_cycles_without_progress_end_the_job(
    before: int, stalled: int, found: int, steps: int, most: int, expected: tuple[Kind, int, int]
) -> None:
    """The count and the number stand in the record, whichever node writes the next one; restarts are left."""
    now = replace(FIRST, iteration=before, stalled=stalled)
    ending = replace(BEGAN, now=now, step=steps, iteration=found)
    ending = _set(ending, max_restarts=10, least_progress=100, most_stalled=most, no_restart_code=42)
    record = ending.restart("it failed", exit_code=5)
    assert (record.kind, record.stalled, record.iteration) == expected
    assert record.no_progress == (record.kind is Kind.END)
    assert record.is_trouble, "evidence is wanted whatever the exit code is"
    assert record.exit_code == (42 if record.kind is Kind.END else 0)
    assert CycleRecord.decode(record.encode(), record.cycle) == record


@pytest.mark.parametrize(
    ("before", "failure", "most", "expected"),
    [
        (("E at step 23", 2), "E at step 23", 3, (Kind.END, 3)),
        (("E at step 23", 1), "E at step 23", 3, (Kind.RESTART, 2)),
        (("E at step 23", 2), "E at step 24", 3, (Kind.RESTART, 1)),
        (("E at step 23", 2), "", 3, (Kind.RESTART, 0)),
        (("", 0), "", 1, (Kind.RESTART, 0)),
        (("", 0), "E at step 23", 1, (Kind.END, 1)),
        (("E at step 23", 9), "E at step 23", 0, (Kind.RESTART, 10)),  # never
        (("E at step 23", 2), None, 3, (Kind.RESTART, 2)),  # a peer was lost
    ],
)
def test_cycles_with_the_same_failure_end_the_job(
    before: tuple[str, int], failure: str | None, most: int, expected: tuple[Kind, int]
) -> None:
    """Whichever node writes the next record; restarts are left."""
    now = replace(FIRST, failure=before[0], same_failures=before[1])
    ending = _set(replace(BEGAN, now=now), max_restarts=10, same_failure_limit=most, no_restart_code=42)
    record = ending.restart("it failed", exit_code=5, failure=failure)
    assert (record.kind, record.same_failures) == expected
    assert record.is_same_failure == (record.kind is Kind.END) and record.is_trouble
    assert record.exit_code == (42 if record.kind is Kind.END else 0)
    assert CycleRecord.decode(record.encode(), record.cycle) == record


def test_a_record_without_a_failure_keeps_all_counts() -> None:
    now = replace(FIRST, failure="E at step 23", same_failures=2, iteration=10, stalled=1)
    joined = replace(BEGAN, now=now, iteration=50).join(1)
    assert joined is not None and (joined.failure, joined.same_failures) == (now.failure, 2)
    assert (joined.iteration, joined.stalled) == (10, 1)


def test_one_measure_of_progress_counts_for_both_budgets() -> None:
    """Steps were made, and nothing was saved: with a number that is no progress, without one it is."""
    now = replace(FIRST, restarts=1, reached_step=5, iteration=10)
    ending = _set(replace(BEGAN, now=now, step=90), max_restarts=1, reset_on_progress=True)
    assert ending.restart("it failed").kind is Kind.RESTART
    assert replace(ending, iteration=10).restart("it failed").kind is Kind.END
    assert replace(ending, iteration=11).restart("it failed").restarts == 1


def test_restart_with_all_nodes_keeps_the_membership() -> None:
    record = BEGAN.restart("a rank failed")
    assert (record.gather, record.formed, record.base) == (False, 0, 0)
    again = replace(BEGAN, now=record).restart("again")
    assert (again.gather, again.formed, again.base) == (False, 0, 0)


@pytest.mark.parametrize(
    ("lost", "waiting", "room", "gather"),
    [((), 0, 1, False), ((), 1, 0, True), ((), 1, 1, True), (("b",), 0, 0, True), (("b",), 1, 0, True)],
)
def test_restart_forms_a_membership_when_nodes_change(
    lost: tuple[str, ...], waiting: int, room: int, gather: bool
) -> None:
    record = replace(BEGAN, waiting=waiting, room=room).restart("it failed", lost=lost)
    assert record.gather == gather
    assert record.lost == lost


def test_restart_forms_a_membership_where_that_is_asked_for() -> None:
    """A rank that only lost a peer: a whole node may be gone, without being known as lost."""
    record = BEGAN.restart("connection closed by peer", gather=True)
    assert record.gather and record.lost == ()


def test_role_ranks_count_the_nodes_of_one_role() -> None:
    members = Membership((Member("a", 2, role="x"), Member("b", 4, role="y"), Member("c", 3, role="x")))
    assert [members.role_ranks(name) for name in "abc"] == [(0, 5), (0, 4), (2, 5)]


def test_call_off_remembers_lost_nodes_and_has_a_budget() -> None:
    record = BEGAN.restart("node b is gone", lost=["b"])
    for number in range(CALL_OFF_BUDGET):
        record = replace(BEGAN, now=record, began=False).call_off("no answer", [f"c{number}"])
        assert record.kind is Kind.JOIN
        assert record.base == 0, "nodes that trained keep their right to a place"
    assert record.lost[:2] == ("b", "c0")
    end = replace(BEGAN, now=record, began=False).call_off("no answer")
    assert (end.kind, end.exit_code) == (Kind.END, 1)
    assert "cycles in a row were called off" in end.reason


def test_join_keeps_its_distance_and_an_hourly_budget() -> None:
    ending, joins = BEGAN, 0
    for second in range(0, int(HOUR), 10):
        ending = replace(ending, job_time=float(second))
        if (record := ending.join(1)) is not None:
            joins += 1
            ending = replace(ending, now=record)
    assert joins == JOIN_BUDGET
    assert ending.now.joins[1] - ending.now.joins[0] == 30.0
    assert replace(ending, job_time=HOUR + 10.0).join(1) is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from([*CycleRecord.__dataclass_fields__, "since_9_9"])


@given(st.one_of(VALUES, st.dictionaries(FIELDS, VALUES)))
def test_decode_of_any_value_is_a_record(value: object) -> None:
    """A launcher of another version, or a foreign program, may have written it."""
    record = CycleRecord.decode(json.dumps(value), 4)
    assert record.cycle == 4
    assert replace(BEGAN, now=record).restart("it failed").cycle == 5
    assert CycleRecord.decode(record.encode(), 4) == record


@given(st.text(max_size=20))
def test_decode_of_any_text_lets_nodes_join(text: str) -> None:
    record = CycleRecord.decode(text, 2)
    assert record.cycle == 2
    assert entries(text) == {} or '"node"' in text


def test_view_of_a_growing_log_equals_a_fresh_one() -> None:
    """Lines that are written twice count once; a line that is no JSON counts for nothing."""
    view, text = View({}), ""
    for line in ('{"node":"a","x":1}', "garbage", '{"node":"b"}', '{"node":"a","x":2}', "[1]"):
        text += line + "\n"
        view["log"] = text
        assert view.log("log") == entries(text)
    assert view.log("log") == {"a": {"node": "a", "x": 2}, "b": {"node": "b"}}
    assert view.log("none") == {}
