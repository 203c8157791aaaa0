"""The record of a cycle: one number, one reason, one count of restarts for all nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.nodes.records import (
    END,
    EXCLUDE,
    FIRST,
    JOIN,
    RESTART,
    START,
    Moved,
    Record,
)

records = st.builds(
    Record,
    cycle=st.integers(0, 10**6),
    kind=st.sampled_from([START, RESTART, JOIN, EXCLUDE, END]),
    restarts=st.integers(0, 10**6),
    reason=st.text(),
    node=st.text(),
    exit_code=st.integers(0, 255),
    lost=st.integers(0, 3),
    back=st.integers(0, 100),
    others=st.integers(0, 100),
)


@given(records)
def test_what_the_store_gives_back_is_what_was_written(record: Record) -> None:
    assert Record.decode(record.encode()) == record
    assert Record.decode(record.encode().encode()) == record, "stores give bytes"


@given(records, st.sampled_from([JOIN, EXCLUDE, END]), st.text(), st.text())
def test_the_next_cycle_spends_no_restart_unless_it_says_so(
    record: Record, kind: str, reason: str, node: str
) -> None:
    after = record.next(kind, reason=reason, node=node)
    assert (after.cycle, after.restarts) == (record.cycle + 1, record.restarts)
    assert (after.kind, after.reason, after.node, after.exit_code) == (kind, reason, node, 0)


@given(records, st.integers(0, 100))
def test_a_restart_counts(record: Record, restarts: int) -> None:
    after = record.next(RESTART, reason="rank 1 died", node="a", restarts=restarts)
    assert (after.cycle, after.restarts) == (record.cycle + 1, restarts)


@given(records)
def test_the_first_to_write_decides_and_both_count_one_restart(record: Record) -> None:
    """Two nodes propose for the same cycle, as when a rank of each dies: the store keeps the first."""
    ours = record.next(RESTART, reason="ours", node="a", restarts=record.restarts + 1)
    theirs = record.next(RESTART, reason="theirs", node="b", restarts=record.restarts + 1)
    assert (ours.cycle, ours.restarts) == (theirs.cycle, theirs.restarts)


@given(records)
def test_news_belongs_to_the_cycle_before(record: Record) -> None:
    """A node that has already joined the new cycle must not take it for news."""
    after = record.next(RESTART, reason="", node="a")
    assert Moved(after).cycle == record.cycle


def test_a_job_begins_with_cycle_0_and_nothing_spent() -> None:
    assert (FIRST.cycle, FIRST.kind, FIRST.restarts, FIRST.exit_code) == (0, START, 0, 0)


@given(records, st.integers(1, 50), st.integers(0, 50))
def test_a_cycle_has_a_place_for_every_node_that_is_expected(record: Record, least: int, more: int) -> None:
    most = least + more
    places = record.places(least, most)
    assert least <= places <= most
    if record.back:
        assert places >= min(record.back, most), "none that trained is left out for want of a place"
        assert places in (least, most, record.back + record.others), (
            "nor is one waited for that nobody expects"
        )
    else:
        assert places == most, "before the first cycle anyone may come"
