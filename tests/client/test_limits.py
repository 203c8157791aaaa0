"""The documented formulas of learned limits, for any observation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance import HeartbeatTimeouts, SectionTimeouts
from holdfast.fault_tolerance.limits import (
    Floors,
    at_floor,
    learn_heartbeats,
    learn_sections,
    learned,
    raised_to_floor,
    unobserved,
)

SECONDS = st.floats(1e-6, 1e7)
FACTORS = st.floats(1.0, 100.0)
FLOORS = st.builds(Floors, st.floats(0, 1000), st.floats(0, 1000))
LIMITS = st.none() | SECONDS
NAMES = st.sampled_from(["setup", "step", "checkpointing", "eval"])


@st.composite
def section_timeouts(draw: st.DrawFn) -> SectionTimeouts:
    section = draw(st.dictionaries(NAMES, LIMITS))
    limited = [name for name, limit in section.items() if limit is not None]
    calculated = set(draw(st.lists(st.sampled_from(limited)))) if limited else set()
    out = draw(LIMITS)
    return SectionTimeouts(section, out, calculated, out is not None and draw(st.booleans()))


@given(SECONDS, FACTORS, st.floats(0, 1e4))
def test_a_first_learned_limit_is_factor_times_longest_but_not_below_its_floor(
    longest: float, factor: float, floor: float
) -> None:
    assert learned(longest, factor, floor) == max(factor * longest, floor)


@given(SECONDS, FACTORS, st.floats(0, 1e4), SECONDS)
def test_a_limit_learned_again_is_the_mean_of_both(
    longest: float, factor: float, floor: float, before: float
) -> None:
    limit = learned(longest, factor, floor, before)
    assert limit == pytest.approx(max((factor * longest + before) / 2, floor))
    assert limit >= floor
    low, high = sorted([factor * longest, before])
    assert limit >= low * (1 - 1e-9) and limit <= max(high, floor) * (1 + 1e-9)


@given(SECONDS, FACTORS)
def test_learning_the_same_again_changes_nothing(longest: float, factor: float) -> None:
    once = learned(longest, factor, 0)
    assert learned(longest, factor, 0, once) == pytest.approx(once)


@given(LIMITS, LIMITS, st.booleans(), SECONDS, SECONDS, FACTORS, FLOORS)
def test_heartbeat_limits(
    initial: float | None,
    subsequent: float | None,
    were_learned: bool,
    first: float,
    gap: float,
    factor: float,
    floors: Floors,
) -> None:
    current = HeartbeatTimeouts(initial, subsequent, were_learned)
    new = learn_heartbeats(current, first, gap, factor, floors)
    assert new.were_calculated and new.are_valid
    assert new.initial == learned(first, factor, floors.initial, initial if were_learned else None)
    assert new.subsequent == learned(gap, factor, floors.general, subsequent if were_learned else None)
    assert current == HeartbeatTimeouts(initial, subsequent, were_learned), "the argument was changed"


@given(section_timeouts(), st.dictionaries(NAMES, SECONDS), LIMITS, FACTORS, FLOORS)
def test_only_the_selected_sections_change(
    current: SectionTimeouts, longest: dict[str, float], out: float | None, factor: float, floors: Floors
) -> None:
    new = learn_sections(current, longest, out, factor, floors)
    assert set(new.section) == set(current.section) | set(longest)
    assert new.calculated_sections == current.calculated_sections | set(longest)
    for name, limit in new.section.items():
        if name not in longest:
            assert limit == current.section[name]
            continue
        before = current.section.get(name) if name in current.calculated_sections else None
        assert limit == learned(longest[name], factor, floors.of_section(name), before)
    if out is None:
        assert (new.out_of_section, new.is_out_of_section_calculated) == (
            current.out_of_section,
            current.is_out_of_section_calculated,
        )
    else:
        before = current.out_of_section if current.is_out_of_section_calculated else None
        assert new.out_of_section == learned(out, factor, floors.general, before)
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
    new_heartbeat, new_section = raised_to_floor(heartbeat, section, floors)
    if not were_learned:
        assert new_heartbeat == heartbeat
    else:
        assert new_heartbeat.initial == (None if initial is None else max(initial, floors.initial))
    for name, limit in section.section.items():
        if name in section.calculated_sections:
            assert limit is not None and new_section.section[name] == max(limit, floors.of_section(name))
        else:
            assert new_section.section[name] == limit
    assert raised_to_floor(new_heartbeat, new_section, floors) == (new_heartbeat, new_section)


def test_the_default_floors() -> None:
    floors = Floors()
    heartbeat = learn_heartbeats(HeartbeatTimeouts(), 0.078, 0.0004, 5.0, floors)
    assert (heartbeat.initial, heartbeat.subsequent) == (300.0, 10.0)
    section = learn_sections(SectionTimeouts(), {"setup": 0.0004, "step": 0.0004}, 0.1, 5.0, floors)
    assert (section.section, section.out_of_section) == ({"setup": 300.0, "step": 10.0}, 10.0)
    assert at_floor(heartbeat, section, floors) == [
        "initial heartbeat 300 s",
        "heartbeat 10 s",
        "section 'setup' 300 s",
        "section 'step' 10 s",
        "out of section 10 s",
    ]
    slow = learn_heartbeats(HeartbeatTimeouts(), 100, 100, 5.0, floors)
    assert at_floor(slow, None, floors) == []


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
        "heartbeat limits: initial 300.00 s (learned), subsequent 30.50 s (learned)"
    )
    assert str(SectionTimeouts({"step": 180.0, "setup": None}, 7.25, {"step"})) == (
        "section limits: step 180.00 s (learned), setup none, out of section 7.25 s"
    )


def test_what_is_missing_is_said() -> None:
    assert unobserved({"step": 1.0}, ["step"], 2.0) == []
    assert unobserved({"step": 0.0}, ["step", "setup"], 0.0) == [
        "section 'step' was never closed",
        "section 'setup' was never closed",
        "no time out of section was seen",
    ]
    assert unobserved({}, [], None) == []
