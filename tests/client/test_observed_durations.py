"""Longest durations: of heartbeats, of sections through the writer that reports them, of counted steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import BoardWriter, Limits
from holdfast.fault_tolerance.board import writer as writer_module
from holdfast.fault_tolerance.timeouts.learned_timeouts import INITIAL, OUT_OF_SECTION, SUBSEQUENT
from holdfast.fault_tolerance.timeouts.observed_durations import (
    RUNNING,
    SECOND,
    Intervals,
    step_times,
    with_running,
)
from tests.monitor.values import START, at, snapshot

GAPS = st.integers(1, 10**12)
EDGES = st.lists(st.tuples(GAPS, st.sampled_from(["a", "b", "c"])), max_size=40)


@given(st.integers(0, 10**12), st.lists(GAPS, max_size=30))
def test_heartbeats(start: int, gaps: list[int]) -> None:
    seen, now = Intervals(), start
    for gap in gaps:
        seen.heartbeat(now + gap, gap if now > start else 0)
        now += gap
    expected = {INITIAL: gaps[0] / SECOND if gaps else 0.0, SUBSEQUENT: max(gaps[1:], default=0) / SECOND}
    assert seen.heartbeats(start) == expected


@given(EDGES, GAPS)
def test_sections_may_nest_and_overlap(edges: list[tuple[int, str]], last_gap: int) -> None:
    """Each event toggles a section, so any nesting and overlap comes up."""
    now = 1000
    opened: dict[str, int] = {}
    spent: dict[str, list[int]] = {}
    outside: list[int] = []
    out_since = 0
    seen = Intervals()
    writer = BoardWriter(None, seen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "monotonic_ns", lambda: now)
        for gap, name in edges:
            now += gap
            if name in opened:
                assert writer.end_section(name)
                spent.setdefault(name, []).append(now - opened.pop(name))
                out_since = 0 if opened else now
            else:
                assert writer.start_section(name)
                if not opened and out_since:
                    outside.append(now - out_since)
                opened[name], out_since = now, 0
    assert writer.out_of_section_since_ns == out_since
    running = last_gap if out_since else 0
    ages = {name: now - since for name, since in opened.items()}
    result = seen.sections(also=["d"], running_out_ns=running, running_ns=ages)
    assert result.pop(OUT_OF_SECTION) == max([*outside, running]) / SECOND
    assert result == {
        **dict.fromkeys(["d", *opened], 0.0),
        **{RUNNING + name: age / SECOND for name, age in ages.items()},
        **{name: max(lengths) / SECOND for name, lengths in spent.items()},
    }


def test_asking_for_the_running_stretch_does_not_count_it_for_good() -> None:
    seen = Intervals()
    seen.out_of_section(30)
    for running, longest in ((100, 100), (10, 30)):
        assert seen.sections(running_out_ns=running)[OUT_OF_SECTION] == longest / SECOND


def test_a_restart_keeps_what_was_seen_and_measures_no_gap_over_it() -> None:
    seen = Intervals()
    with pytest.MonkeyPatch.context() as patch:
        for times in ([10, 30, 40], [10**15, 10**15 + 5]):
            writer = BoardWriter(None, seen)
            for now in times:
                patch.setattr(writer_module, "monotonic_ns", lambda now=now: now)
                writer.heartbeat()
            writer.connect()
            patch.setattr(writer_module, "monotonic_ns", lambda: 10**17)
            writer.heartbeat(7)
    assert seen.heartbeats(0) == {INITIAL: 10 / SECOND, SUBSEQUENT: 20 / SECOND}


def test_what_still_runs_is_a_lower_bound_for_what_has_ended_before() -> None:
    seen = Intervals()
    seen.heartbeat(10, 0)
    seen.heartbeat(30, 20)
    seen.in_section("epoch", 20)
    seen.in_section("step", 50)
    heartbeats = with_running(seen.heartbeats(0, running_ns=1200))
    assert heartbeats == {INITIAL: 10 / SECOND, SUBSEQUENT: 1200 / SECOND}
    sections = with_running(seen.sections(running_ns={"epoch": 1200, "step": 40, "first": 10}))
    assert sections == {
        OUT_OF_SECTION: 0.0,
        "epoch": 1200 / SECOND,
        "step": 50 / SECOND,
        "first": 0.0,  # never closed, by any rank: nothing can be learned from it
    }


def board(steps: int, first: float, longest: float, last: float) -> Any:
    times = {
        "first_step_ns": at(first),
        "longest_step_ns": at(longest) - START,
        "last_heartbeat_ns": at(last),
    }
    return snapshot(step=steps, heartbeat_count=steps, **times)


def test_the_longest_of_any_rank_counts() -> None:
    ended = [(board(9, 3.0, 0.5, 20.0), at(20.2) / 1e9), (board(7, 2.0, 1.5, 20.0), at(20.1) / 1e9)]
    assert step_times(ended) == ({"ranks": 2, "steps": 7, "first": 3.0, "longest": 1.5}, Limits())


def test_so_does_the_time_from_the_last_step_to_the_end() -> None:
    found = step_times([(board(9, 3.0, 0.5, 20.0), at(50) / 1e9)])
    assert found is not None and found[0]["longest"] == 30.0


def test_ranks_that_speak_for_themselves_or_did_not_get_far_are_left_out() -> None:
    assert step_times([]) is None
    one = board(1, 3.0, 0.0, 3.0)
    assert step_times([(one, at(5) / 1e9), (snapshot(), at(5) / 1e9)]) is None
    assert step_times([(snapshot(step=9, heartbeat_count=9, connected=True), at(5) / 1e9)]) is None
