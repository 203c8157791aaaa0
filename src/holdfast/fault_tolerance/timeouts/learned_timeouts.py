"""Learned timeouts: how they follow from observed durations, and the documented state that keeps them. Pure.

A learned timeout is the longest duration that any rank observed, times a safety factor. If the timeout that it
replaces was learned too, it is the mean of both. It is never less than its floor: a short first job must not leave a
timeout of milliseconds that kills the next healthy one. The floor is never more than the configured timeout: where
the user finds 2 s right, 2 s are no danger. A configured timeout is replaced by a learned one.

Does not cover: a healthy job that becomes slower than everything observed by more than the safety factor. Its ranks
are taken for hung.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from ..board import Limits
from .learning_conditions import SETUP

KEY = "current_timeouts"
"""The one key of a state."""
HEARTBEAT, SECTION = "heartbeat", "section"
"""The parts of a state."""

EMA_WEIGHT = 0.5

Timeouts = TypeVar("Timeouts", "HeartbeatTimeouts", "SectionTimeouts")


@dataclass
class HeartbeatTimeouts:
    """Timeouts of the heartbeats in seconds; None is no timeout.

    `initial` runs from the rank's start to its first heartbeat or section, `subsequent` between two heartbeats.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = False

    @property
    def are_valid(self) -> bool:
        """True when both are set."""
        return self.initial is not None and self.subsequent is not None

    def __str__(self) -> str:
        return f"heartbeat timeouts: initial {_shown(self.initial, self.were_calculated)}, " + (
            f"subsequent {_shown(self.subsequent, self.were_calculated)}"
        )


@dataclass
class SectionTimeouts:
    """Timeouts of the sections in seconds; None is no timeout. `out_of_section` runs while no section is open."""

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: set[str] = field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        """True when all of them were learned."""
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        """True when every section and the time outside of sections have a timeout."""
        return (
            all(timeout is not None for timeout in self.section.values()) and self.out_of_section is not None
        )

    def __str__(self) -> str:
        timeouts = [
            f"{name} {_shown(timeout, name in self.calculated_sections)}"
            for name, timeout in self.section.items()
        ]
        timeouts.append(f"out of section {_shown(self.out_of_section, self.is_out_of_section_calculated)}")
        return "section timeouts: " + ", ".join(timeouts)


@dataclass(frozen=True, slots=True)
class Floors:
    """The least that a learned timeout may be, in seconds: `initial` for the first heartbeat and the section "setup",
    `general` for everything else. A shorter timeout of `configured` lowers the floor of what it is for."""

    general: float = 10.0
    initial: float = 300.0
    configured: Limits = field(default_factory=Limits)

    @property
    def first_heartbeat(self) -> float:
        """The floor of the initial heartbeat."""
        return _lower(self.initial, self.configured.initial)

    @property
    def heartbeat(self) -> float:
        """The floor of all later heartbeats."""
        return _lower(self.general, self.configured.subsequent)

    @property
    def out_of_section(self) -> float:
        """The floor of the time outside of sections."""
        return _lower(self.general, self.configured.out_of_section)

    def of_section(self, name: str) -> float:
        """The floor of one section."""
        return _lower(self.initial if name == SETUP else self.general, self.configured.sections.get(name))


def learned(longest: float, factor: float, floor: float, current: float | None = None) -> float:
    """The timeout learned from the longest observed duration; `current` is the one in force if that was learned."""
    timeout = factor * longest
    if current is not None:
        timeout = EMA_WEIGHT * timeout + (1 - EMA_WEIGHT) * current
    return max(timeout, floor)


def learn_heartbeats(
    current: HeartbeatTimeouts, initial: float, subsequent: float, factor: float, floors: Floors
) -> HeartbeatTimeouts:
    """The timeouts that follow `current`, given the longest durations over all ranks in seconds."""
    before = current if current.were_calculated else HeartbeatTimeouts()
    return HeartbeatTimeouts(
        initial=learned(initial, factor, floors.first_heartbeat, before.initial),
        subsequent=learned(subsequent, factor, floors.heartbeat, before.subsequent),
        were_calculated=True,
    )


def learn_sections(
    current: SectionTimeouts,
    longest: Mapping[str, float],
    out_of_section: float | None,
    factor: float,
    floors: Floors,
) -> SectionTimeouts:
    """The timeouts that follow `current`. `longest` has the selected sections, all others keep their timeout; so does
    the time out of section when `out_of_section` is None."""
    section = dict(current.section)
    for name, seconds in longest.items():
        before = section.get(name) if name in current.calculated_sections else None
        section[name] = learned(seconds, factor, floors.of_section(name), before)
    out, was_learned = current.out_of_section, current.is_out_of_section_calculated
    if out_of_section is not None:
        out = learned(out_of_section, factor, floors.out_of_section, out if was_learned else None)
        was_learned = True
    return SectionTimeouts(section, out, current.calculated_sections | set(longest), was_learned)


def unobserved(
    longest: Mapping[str, float], selected: Collection[str], out_of_section: float | None
) -> list[str]:
    """What is missing before timeouts of the selected sections can be learned, in words; empty when ready."""
    missing = [f"section {name!r} was never closed" for name in selected if longest.get(name, 0) <= 0]
    if out_of_section is not None and out_of_section <= 0:
        missing.append("no time out of section was seen")
    return missing


def at_floor(timeouts: HeartbeatTimeouts | SectionTimeouts, floors: Floors) -> list[str]:
    """Which learned timeouts are as low as their floor, in words; they would be lower without it."""
    learned_ones: list[tuple[str, float | None, float]] = []
    if isinstance(timeouts, HeartbeatTimeouts):
        if timeouts.were_calculated:
            learned_ones.append(("initial heartbeat", timeouts.initial, floors.first_heartbeat))
            learned_ones.append(("heartbeat", timeouts.subsequent, floors.heartbeat))
    else:
        for name in sorted(timeouts.calculated_sections):
            learned_ones.append((f"section {name!r}", timeouts.section.get(name), floors.of_section(name)))
        if timeouts.is_out_of_section_calculated:
            learned_ones.append(("out of section", timeouts.out_of_section, floors.out_of_section))
    return [f"{name} {floor:g} s" for name, timeout, floor in learned_ones if timeout == floor]


def raised_to_floor(timeouts: Timeouts, floors: Floors) -> Timeouts:
    """The same timeouts, the learned ones at their floor at least: a state may come from a job without floors."""
    if isinstance(timeouts, HeartbeatTimeouts):
        if not timeouts.were_calculated:
            return timeouts
        initial = _at_least(timeouts.initial, floors.first_heartbeat)
        return replace(timeouts, initial=initial, subsequent=_at_least(timeouts.subsequent, floors.heartbeat))
    section = dict(timeouts.section)
    for name in timeouts.calculated_sections:
        section[name] = _at_least(section.get(name), floors.of_section(name))
    out = timeouts.out_of_section
    if timeouts.is_out_of_section_calculated:
        out = _at_least(out, floors.out_of_section)
    return replace(timeouts, section=section, out_of_section=out)


def over(current: SectionTimeouts, loaded: SectionTimeouts) -> SectionTimeouts:
    """`current` (from the configuration) under the timeouts of a loaded state.

    Learned timeouts always win. Timeouts that the state merely copied from its job's configuration are used only
    where today's configuration does not set them.
    """
    section = {**loaded.section, **current.section}
    section.update({name: loaded.section[name] for name in loaded.calculated_sections})
    is_out_learned = loaded.is_out_of_section_calculated
    return SectionTimeouts(
        section,
        loaded.out_of_section if is_out_learned else current.out_of_section,
        loaded.calculated_sections | current.calculated_sections,
        is_out_learned or current.is_out_of_section_calculated,
    )


def to_state(heartbeat: HeartbeatTimeouts | None, section: SectionTimeouts | None) -> dict[str, Any]:
    """The documented state: plain values for JSON, the same on every rank. Each part is present once it was learned.

    {"current_timeouts": {"heartbeat": {"initial", "subsequent", "were_calculated"},
                          "section": {"section", "out_of_section", "calculated_sections" (sorted list),
                                      "is_out_of_section_calculated"}}}
    """
    parts: dict[str, Any] = {}
    if heartbeat is not None and heartbeat.were_calculated and heartbeat.are_valid:
        parts[HEARTBEAT] = asdict(heartbeat)
    if section is not None and (section.calculated_sections or section.is_out_of_section_calculated):
        parts[SECTION] = {
            "section": dict(section.section),
            "out_of_section": section.out_of_section,
            "calculated_sections": sorted(section.calculated_sections),
            "is_out_of_section_calculated": section.is_out_of_section_calculated,
        }
    return {KEY: parts}


def parts_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts of a state, unchecked; in NVRx's oldest form the heartbeat part was directly under the key.

    Raises ValueError if they are no mapping.
    """
    parts = state.get(KEY, {})
    if not isinstance(parts, Mapping):
        raise ValueError(f"{KEY!r} is {parts!r}, not a mapping")
    return {HEARTBEAT: parts} if "initial" in parts and HEARTBEAT not in parts else parts


def from_state(
    state: Mapping[str, Any],
) -> tuple[HeartbeatTimeouts | None, SectionTimeouts | None, list[str]]:
    """The timeouts of a state, also of NVRx; each None if it is absent or unusable, and why parts are unusable.

    A part with unusable values is left out: a damaged state file must not stop the training.
    """
    try:
        parts = parts_of(state)
    except ValueError as error:
        return None, None, [str(error)]
    timeouts: dict[str, Any] = {}
    problems = []
    for part, read in ((HEARTBEAT, _heartbeat), (SECTION, _section)):
        if part not in parts:
            continue
        try:
            timeouts[part] = read(_mapping(parts[part]))
        except (TypeError, ValueError, KeyError) as error:
            why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"its {part} part is unusable: {why}")
    return timeouts.get(HEARTBEAT), timeouts.get(SECTION), problems


def _heartbeat(part: Mapping[str, Any]) -> HeartbeatTimeouts:
    return HeartbeatTimeouts(
        _timeout("initial", part["initial"]),
        _timeout("subsequent", part["subsequent"]),
        bool(part.get("were_calculated", False)),
    )


def _section(part: Mapping[str, Any]) -> SectionTimeouts:
    section = {str(name): _timeout(str(name), timeout) for name, timeout in _mapping(part["section"]).items()}
    calculated = {str(name) for name in part.get("calculated_sections", ())}
    if unlisted := calculated - set(section):
        raise ValueError(f"calculated_sections names {', '.join(sorted(unlisted))}, which have no timeout")
    out = _timeout("out_of_section", part.get("out_of_section"))
    return SectionTimeouts(section, out, calculated, bool(part.get("is_out_of_section_calculated", False)))


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no mapping")
    return value


def _timeout(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}, not a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, not a timeout")
    return float(value)


def _at_least(timeout: float | None, floor: float) -> float | None:
    return None if timeout is None else max(timeout, floor)


def _lower(floor: float, configured: float | None) -> float:
    return floor if configured is None else min(floor, configured)


def _shown(timeout: float | None, learned: bool | None) -> str:
    if timeout is None:
        return "none"
    return f"{timeout:.2f} s" + (" (learned)" if learned else "")
