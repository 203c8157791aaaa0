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
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..board import Limits
from .learning_conditions import SETUP

KEY = "current_timeouts"
"""The one key of a state."""
HEARTBEAT, SECTION = "heartbeat", "section"
"""The parts of a state."""

INITIAL, SUBSEQUENT = "initial", "subsequent"
"""The names of the heartbeat timeouts."""
OUT_OF_SECTION = ""
"""Stands for the time outside of all sections, where sections are listed by name; no section has this name."""


class Timeout(NamedTuple):
    """Seconds, None is no timeout; and whether they were learned."""

    seconds: float | None
    is_learned: bool


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
        return f"heartbeat timeouts: {_listed(self)}"

    def _table(self) -> dict[str, Timeout]:
        is_learned = bool(self.were_calculated)
        return {INITIAL: Timeout(self.initial, is_learned), SUBSEQUENT: Timeout(self.subsequent, is_learned)}

    @classmethod
    def _of(cls, table: Mapping[str, Timeout]) -> HeartbeatTimeouts:
        initial, subsequent = table[INITIAL], table[SUBSEQUENT]
        return cls(initial.seconds, subsequent.seconds, initial.is_learned and subsequent.is_learned)


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
        return all(timeout.is_learned for timeout in self._table().values())

    @property
    def are_valid(self) -> bool:
        """True when every section and the time outside of sections have a timeout."""
        return all(timeout.seconds is not None for timeout in self._table().values())

    def __str__(self) -> str:
        return f"section timeouts: {_listed(self)}"

    def _table(self) -> dict[str, Timeout]:
        learned = self.calculated_sections
        table = {name: Timeout(seconds, name in learned) for name, seconds in self.section.items()}
        return {**table, OUT_OF_SECTION: Timeout(self.out_of_section, self.is_out_of_section_calculated)}

    @classmethod
    def _of(cls, table: Mapping[str, Timeout]) -> SectionTimeouts:
        sections = {name: timeout for name, timeout in table.items() if name != OUT_OF_SECTION}
        seconds = {name: timeout.seconds for name, timeout in sections.items()}
        learned = {name for name, timeout in sections.items() if timeout.is_learned}
        return cls(seconds, table[OUT_OF_SECTION].seconds, learned, table[OUT_OF_SECTION].is_learned)


Timeouts = TypeVar("Timeouts", HeartbeatTimeouts, SectionTimeouts)


def _listed(timeouts: HeartbeatTimeouts | SectionTimeouts) -> str:
    return ", ".join(
        f"{name or 'out of section'} "
        + (
            "none"
            if timeout.seconds is None
            else f"{timeout.seconds:.2f} s" + " (learned)" * timeout.is_learned
        )
        for name, timeout in timeouts._table().items()
    )


@dataclass(frozen=True, slots=True)
class Floors:
    """The least that a learned timeout may be, in seconds: `initial` for the first heartbeat and the section "setup",
    `general` for everything else. A shorter timeout of `configured` lowers the floor of what it is for."""

    general: float = 10.0
    initial: float = 300.0
    configured: Limits = field(default_factory=Limits)

    def of(self, part: HeartbeatTimeouts | SectionTimeouts, name: str) -> float:
        """The floor of one timeout of this part."""
        configured = self.configured
        if isinstance(part, HeartbeatTimeouts):
            floor = self.initial if name == INITIAL else self.general
            limit = configured.initial if name == INITIAL else configured.subsequent
        else:
            floor = self.initial if name == SETUP else self.general
            limit = configured.out_of_section if name == OUT_OF_SECTION else configured.sections.get(name)
        return floor if limit is None else min(floor, limit)


def learn(current: Timeouts, longest: Mapping[str, float], factor: float, floors: Floors) -> Timeouts:
    """The timeouts that follow `current`; `longest` has the longest durations over all ranks in seconds, by name.

    A timeout that it does not name stays.
    """
    table = current._table()
    for name, seconds in longest.items():
        before, timeout = table.get(name), factor * seconds
        if before and before.is_learned and before.seconds is not None:
            timeout = (timeout + before.seconds) / 2
        table[name] = Timeout(max(timeout, floors.of(current, name)), True)
    return current._of(table)


def unobserved(part: str, longest: Mapping[str, float], names: Iterable[str]) -> list[str]:
    """What is missing before timeouts of these names can be learned, in words; empty when ready."""
    unseen = [name for name in names if longest.get(name, 0) <= 0]
    if part == HEARTBEAT:
        return ["no rank has sent two heartbeats"] if unseen else []
    return [
        f"section {name!r} was never closed" if name else "no time out of section was seen" for name in unseen
    ]


def at_floor(timeouts: HeartbeatTimeouts | SectionTimeouts, floors: Floors) -> list[str]:
    """Which learned timeouts are as low as their floor, in words; they would be lower without it."""
    words = {INITIAL: "initial heartbeat", SUBSEQUENT: "heartbeat"}
    if isinstance(timeouts, SectionTimeouts):
        words = {name: f"section {name!r}" for name in timeouts.section} | {OUT_OF_SECTION: "out of section"}
    return [
        f"{words[name]} {timeout.seconds:g} s"
        for name, timeout in timeouts._table().items()
        if timeout.is_learned and timeout.seconds == floors.of(timeouts, name)
    ]


def raised_to_floor(timeouts: Timeouts, floors: Floors) -> Timeouts:
    """The same timeouts, the learned ones at their floor at least: a state may come from a job without floors."""
    table = timeouts._table()
    for name, timeout in table.items():
        if timeout.is_learned and timeout.seconds is not None:
            table[name] = Timeout(max(timeout.seconds, floors.of(timeouts, name)), True)
    return timeouts._of(table)


def over(current: SectionTimeouts, loaded: SectionTimeouts) -> SectionTimeouts:
    """`current` (from the configuration) under the timeouts of a loaded state.

    Learned timeouts always win. Timeouts that the state merely copied from its job's configuration are used only
    where today's configuration does not set them.
    """
    copied = loaded._table()
    learned_ones = {name: timeout for name, timeout in copied.items() if timeout.is_learned}
    return SectionTimeouts._of({**copied, **current._table(), **learned_ones})


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
