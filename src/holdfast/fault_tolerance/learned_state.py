"""The documented state of learned limits: plain values for JSON, the same on every rank, kept from job to job.

    {"current_timeouts": {"heartbeat": {"initial", "subsequent", "were_calculated"},
                          "section": {"section", "out_of_section", "calculated_sections" (sorted list),
                                      "is_out_of_section_calculated"}}}

Each part is there once its limits were learned. Reads what NVRx writes, also its oldest form, in which the heartbeat
part lies directly under "current_timeouts". A part with values that are no limits is left out, with a reason for the
log: a damaged state file must not stop the training. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .limits import HeartbeatTimeouts, SectionTimeouts

KEY = "current_timeouts"


def to_state(heartbeat: HeartbeatTimeouts | None, section: SectionTimeouts | None) -> dict[str, Any]:
    """The state of these limits; None is "not known yet"."""
    parts: dict[str, Any] = {}
    if heartbeat is not None and heartbeat.were_calculated and heartbeat.are_valid:
        parts["heartbeat"] = {
            "initial": heartbeat.initial,
            "subsequent": heartbeat.subsequent,
            "were_calculated": True,
        }
    if section is not None and (section.calculated_sections or section.is_out_of_section_calculated):
        parts["section"] = {
            "section": dict(section.section),
            "out_of_section": section.out_of_section,
            "calculated_sections": sorted(section.calculated_sections),
            "is_out_of_section_calculated": section.is_out_of_section_calculated,
        }
    return {KEY: parts}


def from_state(
    state: Mapping[str, Any],
) -> tuple[HeartbeatTimeouts | None, SectionTimeouts | None, list[str]]:
    """The parts of a state, each None if it is absent or unusable, and why parts are unusable."""
    parts = state.get(KEY, {})
    heartbeat = section = None
    problems = []
    if not isinstance(parts, Mapping):
        return None, None, [f"{KEY!r} is {parts!r}, not a mapping"]
    if "initial" in parts and "heartbeat" not in parts:
        parts = {"heartbeat": parts}
    try:
        heartbeat = _heartbeat(_mapping(parts["heartbeat"])) if "heartbeat" in parts else None
    except (TypeError, ValueError, KeyError) as error:
        problems.append(f"its heartbeat part is unusable: {_why(error)}")
    try:
        section = _section(_mapping(parts["section"])) if "section" in parts else None
    except (TypeError, ValueError, KeyError) as error:
        problems.append(f"its section part is unusable: {_why(error)}")
    return heartbeat, section, problems


def over(current: SectionTimeouts, loaded: SectionTimeouts) -> SectionTimeouts:
    """`current` (from the configuration) with what was learned laid over it. A limit that the state only repeats
    from the configuration of its time counts only where the configuration of today says nothing."""
    section = {**loaded.section, **current.section}
    section.update({name: loaded.section[name] for name in loaded.calculated_sections})
    learned_out = loaded.is_out_of_section_calculated
    return SectionTimeouts(
        section,
        loaded.out_of_section if learned_out else current.out_of_section,
        loaded.calculated_sections | current.calculated_sections,
        learned_out or current.is_out_of_section_calculated,
    )


def _heartbeat(part: Mapping[str, Any]) -> HeartbeatTimeouts:
    return HeartbeatTimeouts(
        _limit("initial", part["initial"]),
        _limit("subsequent", part["subsequent"]),
        bool(part.get("were_calculated", False)),
    )


def _section(part: Mapping[str, Any]) -> SectionTimeouts:
    section = {str(name): _limit(str(name), limit) for name, limit in _mapping(part["section"]).items()}
    calculated = {str(name) for name in part.get("calculated_sections", ())}
    if strangers := calculated - set(section):
        raise ValueError(f"calculated_sections names {', '.join(sorted(strangers))}, which have no limit")
    out = _limit("out_of_section", part.get("out_of_section"))
    return SectionTimeouts(section, out, calculated, bool(part.get("is_out_of_section_calculated", False)))


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no mapping")
    return value


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}, not a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, not a limit")
    return float(value)


def _why(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
