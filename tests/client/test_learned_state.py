"""The documented state: what we write we read, what NVRx wrote we read, and what is damaged harms nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from holdfast.fault_tolerance import HeartbeatTimeouts, SectionTimeouts
from holdfast.fault_tolerance.learned_state import from_state, over, to_state

from .test_limits import LIMITS, SECONDS, section_timeouts


@given(SECONDS, SECONDS, section_timeouts())
def test_a_state_survives_json(initial: float, subsequent: float, section: SectionTimeouts) -> None:
    heartbeat = HeartbeatTimeouts(initial, subsequent, True)
    read = from_state(json.loads(json.dumps(to_state(heartbeat, section))))
    any_learned = section.calculated_sections or section.is_out_of_section_calculated
    assert read == (heartbeat, section if any_learned else None, [])


@given(LIMITS, LIMITS)
def test_what_was_only_configured_is_no_state(initial: float | None, subsequent: float | None) -> None:
    configured = HeartbeatTimeouts(initial, subsequent), SectionTimeouts({"step": 1.0}, 2.0)
    assert to_state(*configured) == {"current_timeouts": {}} == to_state(None, None)
    assert from_state(to_state(*configured)) == (None, None, [])


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
    oldest = '{"current_timeouts": {"initial": 61.5, "subsequent": 9.25, "were_calculated": true}}'
    assert from_state(json.loads(oldest)) == (HeartbeatTimeouts(61.5, 9.25, True), None, [])


GOOD = {"initial": 300.0, "subsequent": 10.0, "were_calculated": True}


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("heartbeat", {"initial": 300.0}, "subsequent is missing"),
        ("heartbeat", {**GOOD, "initial": "long"}, "initial is 'long', not a number"),
        ("heartbeat", {**GOOD, "initial": -1}, "initial is -1, not a limit"),
        ("heartbeat", {**GOOD, "subsequent": float("nan")}, "subsequent is nan, not a limit"),
        ("heartbeat", {**GOOD, "subsequent": True}, "subsequent is True, not a number"),
        ("heartbeat", 7, "7 is no mapping"),
        ("section", {}, "section is missing"),
        ("section", {"section": {"step": 0}}, "step is 0, not a limit"),
        ("section", {"section": ["step"]}, "['step'] is no mapping"),
        ("section", {"section": {}, "calculated_sections": ["step"]}, "step, which have no limit"),
    ],
)
def test_a_damaged_part_is_left_out_and_named(part: str, value: object, why: str) -> None:
    state: dict[str, Any] = {"current_timeouts": {"heartbeat": GOOD, "section": {"section": {"step": 9.0}}}}
    state["current_timeouts"][part] = value
    heartbeat, section, (problem,) = from_state(state)
    assert f"its {part} part is unusable" in problem and why in problem
    assert (heartbeat is None) == (part == "heartbeat") and (section is None) == (part == "section")


@pytest.mark.parametrize("value", [None, [1], "x"])
def test_a_state_that_is_none_is_left_out(value: object) -> None:
    assert from_state({"current_timeouts": value})[:2] == (None, None)


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
