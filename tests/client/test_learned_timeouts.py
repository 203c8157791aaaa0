"""Learned timeouts: the longest observed durations, the documented formulas and state, for any observation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance import HeartbeatTimeouts, SectionTimeouts
from holdfast.fault_tolerance.board import BoardWriter, Limits
from holdfast.fault_tolerance.board import writer as writer_module
from holdfast.fault_tolerance.timeouts.learned_timeouts import (
    INITIAL,
    OUT_OF_SECTION,
    SUBSEQUENT,
    Floors,
    at_floor,
    from_state,
    learn,
    over,
    raised_to_floor,
    to_state,
)
from holdfast.fault_tolerance.timeouts.observed_durations import RUNNING, SECOND, Intervals, step_times
from tests.boards import START, at, snapshot

SECONDS = st.floats(1e-6, 1e7)
FACTORS = st.floats(1.0, 100.0)
FLOORS = st.builds(Floors, st.floats(0, 1000), st.floats(0, 1000))
LIMITS = st.none() | SECONDS
SECTIONS = SectionTimeouts()
NAMES = st.sampled_from(["setup", "step", "checkpointing", "eval"])


@st.composite
def section_timeouts(draw: st.DrawFn) -> SectionTimeouts:
    section = draw(st.dictionaries(NAMES, LIMITS))
    limited = [name for name, limit in section.items() if limit is not None]
    calculated = set(draw(st.lists(st.sampled_from(limited)))) if limited else set()
    out = draw(LIMITS)
    return SectionTimeouts(section, out, calculated, out is not None and draw(st.booleans()))


@given(section_timeouts(), st.dictionaries(NAMES, SECONDS), LIMITS, FACTORS, FLOORS)
def test_a_limit_is_factor_times_longest_and_learned_again_the_mean_of_both(
    current: SectionTimeouts, longest: dict[str, float], out: float | None, factor: float, floors: Floors
) -> None:
    """Never below its floor. Only the selected sections change."""

    def expected(seconds: float, floor: float, before: float | None) -> Any:
        limit = factor * seconds
        return pytest.approx(max(floor, limit if before is None else (limit + before) / 2))

    new = learn(current, longest if out is None else {**longest, OUT_OF_SECTION: out}, factor, floors)
    assert set(new.section) == set(current.section) | set(longest)
    assert new.calculated_sections == current.calculated_sections | set(longest)
    for name, limit in new.section.items():
        if name not in longest:
            assert limit == current.section[name]
            continue
        before = current.section.get(name) if name in current.calculated_sections else None
        assert limit == expected(longest[name], floors.of(SECTIONS, name), before)
    if out is None:
        assert (new.out_of_section, new.is_out_of_section_calculated) == (
            current.out_of_section,
            current.is_out_of_section_calculated,
        )
    else:
        before = current.out_of_section if current.is_out_of_section_calculated else None
        assert new.out_of_section == expected(out, floors.general, before)
        assert new.is_out_of_section_calculated


@given(section_timeouts(), st.booleans(), LIMITS, LIMITS, FLOORS)
def test_loaded_limits_are_raised_to_their_floor_and_configured_ones_are_not(
    section: SectionTimeouts,
    were_learned: bool,
    initial: float | None,
    subsequent: float | None,
    floors: Floors,
) -> None:
    heartbeat = HeartbeatTimeouts(initial, subsequent, were_learned)
    new_heartbeat, new_section = raised_to_floor(heartbeat, floors), raised_to_floor(section, floors)
    if not were_learned:
        assert new_heartbeat == heartbeat
    else:
        assert new_heartbeat.initial == (None if initial is None else max(initial, floors.initial))
    for name, limit in section.section.items():
        if name in section.calculated_sections:
            assert limit is not None and new_section.section[name] == max(limit, floors.of(SECTIONS, name))
        else:
            assert new_section.section[name] == limit
    assert raised_to_floor(new_heartbeat, floors) == new_heartbeat
    assert raised_to_floor(new_section, floors) == new_section


def test_the_default_floors() -> None:
    floors = Floors()
    heartbeat = learn(HeartbeatTimeouts(), {INITIAL: 0.078, SUBSEQUENT: 0.0004}, 5.0, floors)
    assert (heartbeat.initial, heartbeat.subsequent) == (300.0, 10.0)
    section = learn(SectionTimeouts(), {"setup": 0.0004, "step": 0.0004, OUT_OF_SECTION: 0.1}, 5.0, floors)
    assert (section.section, section.out_of_section) == ({"setup": 300.0, "step": 10.0}, 10.0)
    assert at_floor(heartbeat, floors) == ["initial heartbeat 300 s", "heartbeat 10 s"]
    assert at_floor(section, floors) == [
        "section 'setup' 300 s",
        "section 'step' 10 s",
        "out of section 10 s",
    ]
    slow = learn(HeartbeatTimeouts(), {INITIAL: 100, SUBSEQUENT: 100}, 5.0, floors)
    assert at_floor(slow, floors) == []


def test_validity() -> None:
    assert not HeartbeatTimeouts().are_valid and not HeartbeatTimeouts(1.0).are_valid
    assert HeartbeatTimeouts(1.0, 2.0).are_valid
    assert not SectionTimeouts().are_valid and SectionTimeouts({}, 1.0).are_valid
    assert not SectionTimeouts({"a": None}, 1.0).are_valid
    partly = SectionTimeouts({"a": 1.0, "b": 1.0}, 1.0, {"a"}, True)
    assert partly.are_valid and not partly.were_calculated
    assert SectionTimeouts({"a": 1.0}, 1.0, {"a"}, True).were_calculated
    assert not SectionTimeouts({"a": 1.0}, 1.0, {"a"}).were_calculated


def test_limits_can_be_read() -> None:
    assert str(HeartbeatTimeouts(300, 30.5, True)) == (
        "heartbeat timeouts: initial 300.00 s (learned), subsequent 30.50 s (learned)"
    )
    assert str(SectionTimeouts({"step": 180.0, "setup": None}, 7.25, {"step"})) == (
        "section timeouts: step 180.00 s (learned), setup none, out of section 7.25 s"
    )


@given(SECONDS, SECONDS, section_timeouts())
def test_a_state_survives_json(initial: float, subsequent: float, section: SectionTimeouts) -> None:
    heartbeat = HeartbeatTimeouts(initial, subsequent, True)
    read = from_state(json.loads(json.dumps(to_state(heartbeat, section))))
    any_learned = section.calculated_sections or section.is_out_of_section_calculated
    assert read == (heartbeat, section if any_learned else None, [])


def test_the_documented_form() -> None:
    section = SectionTimeouts({"step": 50.0, "setup": 600.0}, 7.5, {"step", "setup"}, True)
    assert to_state(HeartbeatTimeouts(300.0, 10.0, True), section) == {
        "current_timeouts": {
            "heartbeat": {"initial": 300.0, "subsequent": 10.0, "were_calculated": True},
            "section": {
                "section": {"step": 50.0, "setup": 600.0},
                "out_of_section": 7.5,
                "calculated_sections": ["setup", "step"],
                "is_out_of_section_calculated": True,
            },
        }
    }


def test_states_of_the_reference() -> None:
    """As NVRx 0.4.1 wrote them (sections; then nothing learned), and as its first releases did."""
    sections = (
        '{"current_timeouts": {"section": {"section": {"setup": 4.1e2, "step": 12.5, "checkpointing": null}, '
        '"out_of_section": 33.0, "calculated_sections": ["setup", "step"], "is_out_of_section_calculated": true}}}'
    )
    heartbeat, section, problems = from_state(json.loads(sections))
    assert (heartbeat, problems) == (None, [])
    assert section == SectionTimeouts(
        {"setup": 410.0, "step": 12.5, "checkpointing": None}, 33.0, {"setup", "step"}, True
    )
    assert from_state({"current_timeouts": {}}) == from_state({}) == (None, None, [])
    assert from_state({"current_timeouts": [1]}) == (None, None, ["'current_timeouts' is [1], not a mapping"])
    oldest = '{"current_timeouts": {"initial": 61.5, "subsequent": 9.25, "were_calculated": true}}'
    assert from_state(json.loads(oldest)) == (HeartbeatTimeouts(61.5, 9.25, True), None, [])


GOOD = {"initial": 300.0, "subsequent": 10.0, "were_calculated": True}


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("heartbeat", {"initial": 300.0}, "subsequent is missing"),
        ("heartbeat", {**GOOD, "initial": "long"}, "initial is 'long', not a number"),
        ("heartbeat", {**GOOD, "initial": -1}, "initial is -1, not a timeout"),
        ("heartbeat", {**GOOD, "subsequent": float("nan")}, "subsequent is nan, not a timeout"),
        ("heartbeat", {**GOOD, "subsequent": True}, "subsequent is True, not a number"),
        ("heartbeat", 7, "7 is no mapping"),
        ("section", {}, "section is missing"),
        ("section", {"section": {"step": 0}}, "step is 0, not a timeout"),
        ("section", {"section": ["step"]}, "['step'] is no mapping"),
        ("section", {"section": {}, "calculated_sections": ["step"]}, "step, which have no timeout"),
    ],
)
def test_a_damaged_part_is_left_out_and_named(part: str, value: object, why: str) -> None:
    state: dict[str, Any] = {"current_timeouts": {"heartbeat": GOOD, "section": {"section": {"step": 9.0}}}}
    state["current_timeouts"][part] = value
    heartbeat, section, (problem,) = from_state(state)
    assert f"its {part} part is unusable" in problem and why in problem
    assert (heartbeat is None) == (part == "heartbeat") and (section is None) == (part == "section")


@given(section_timeouts(), section_timeouts())
def test_loaded_limits_over_configured_ones(configured: SectionTimeouts, loaded: SectionTimeouts) -> None:
    configured = SectionTimeouts(configured.section, configured.out_of_section)  # nothing learned yet
    new = over(configured, loaded)
    for name, limit in new.section.items():
        if name in loaded.calculated_sections or name not in configured.section:
            assert limit == loaded.section[name]
        else:
            assert limit == configured.section[name]
    assert new.calculated_sections == loaded.calculated_sections
    learned_out = loaded.is_out_of_section_calculated
    assert new.out_of_section == (loaded if learned_out else configured).out_of_section
    if set(loaded.section) == set(configured.section) == loaded.calculated_sections and learned_out:
        assert new == loaded


# -- longest durations: of heartbeats, of sections through the writer that reports them, of counted steps


GAPS = st.integers(1, 10**12)
EDGES = st.lists(st.tuples(GAPS, st.sampled_from(["a", "b", "c"])), max_size=40)


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


@pytest.mark.parametrize(
    ("found", "longest"),
    [
        (board(9, 3.0, 0.5, 20.0), 30.0),  # from its last step to the end
        (board(1, 3.0, 0.0, 3.0), None),
        (snapshot(), None),
        (snapshot(step=9, heartbeat_count=9, connected=True), None),  # it has a client
    ],
)
def test_longest_step_of_a_rank_that_was_counted(found: Any, longest: float | None) -> None:
    times = step_times([(found, at(50) / 1e9)])
    assert (times[0]["longest"] if times else None) == longest
