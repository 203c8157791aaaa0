"""When is a rank hung? The limits in force, and how they are learned. Pure.

A learned limit is the longest interval that any rank observed, times a safety factor; if the limit it replaces was
learned too, the mean of both; and never less than its floor, so that a short first job does not leave a limit of
milliseconds that kills the next healthy one. A configured limit is replaced by a learned one.

Does not cover: a healthy job that becomes slower than everything observed by more than the safety factor. Its ranks
are taken for hung.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

SETUP = "setup"
"""The documented section around the program's start; it has the floor of the initial heartbeat."""

EMA_WEIGHT = 0.5


@dataclass
class HeartbeatTimeouts:
    """Limits of the heartbeats in seconds; None is no limit.

    `initial` runs from the rank's start to its first heartbeat or section, `subsequent` between two heartbeats.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = False

    @property
    def are_valid(self) -> bool:
        """True when both are limits."""
        return self.initial is not None and self.subsequent is not None

    def __str__(self) -> str:
        return f"heartbeat limits: initial {_shown(self.initial, self.were_calculated)}, " + (
            f"subsequent {_shown(self.subsequent, self.were_calculated)}"
        )


@dataclass
class SectionTimeouts:
    """Limits of the sections in seconds; None is no limit. `out_of_section` runs while no section is open."""

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
        """True when every section and the time outside of sections have a limit."""
        return all(limit is not None for limit in self.section.values()) and self.out_of_section is not None

    def __str__(self) -> str:
        limits = [
            f"{name} {_shown(limit, name in self.calculated_sections)}"
            for name, limit in self.section.items()
        ]
        limits.append(f"out of section {_shown(self.out_of_section, self.is_out_of_section_calculated)}")
        return "section limits: " + ", ".join(limits)


@dataclass(frozen=True, slots=True)
class Floors:
    """The least that a learned limit may be, in seconds: `initial` for the first heartbeat and the section "setup",
    `general` for everything else."""

    general: float = 10.0
    initial: float = 300.0

    def of_section(self, name: str) -> float:
        """The floor of one section."""
        return self.initial if name == SETUP else self.general


def learned(longest: float, factor: float, floor: float, current: float | None = None) -> float:
    """The limit learned from the longest observed interval; `current` is the limit in force if that was learned."""
    limit = factor * longest
    if current is not None:
        limit = EMA_WEIGHT * limit + (1 - EMA_WEIGHT) * current
    return max(limit, floor)


def learn_heartbeats(
    current: HeartbeatTimeouts, initial: float, subsequent: float, factor: float, floors: Floors
) -> HeartbeatTimeouts:
    """The limits that follow `current`, given the longest intervals over all ranks in seconds."""
    before = current if current.were_calculated else HeartbeatTimeouts()
    return HeartbeatTimeouts(
        initial=learned(initial, factor, floors.initial, before.initial),
        subsequent=learned(subsequent, factor, floors.general, before.subsequent),
        were_calculated=True,
    )


def learn_sections(
    current: SectionTimeouts,
    longest: Mapping[str, float],
    out_of_section: float | None,
    factor: float,
    floors: Floors,
) -> SectionTimeouts:
    """The limits that follow `current`. `longest` has the selected sections, all others keep their limit; so does
    the time out of section when `out_of_section` is None."""
    section = dict(current.section)
    for name, seconds in longest.items():
        before = section.get(name) if name in current.calculated_sections else None
        section[name] = learned(seconds, factor, floors.of_section(name), before)
    out, was_learned = current.out_of_section, current.is_out_of_section_calculated
    if out_of_section is not None:
        out = learned(out_of_section, factor, floors.general, out if was_learned else None)
        was_learned = True
    return SectionTimeouts(section, out, current.calculated_sections | set(longest), was_learned)


def at_floor(
    heartbeat: HeartbeatTimeouts | None, section: SectionTimeouts | None, floors: Floors
) -> list[str]:
    """Which learned limits are as low as their floor, in words; they would be lower without it."""
    found = []
    if heartbeat is not None and heartbeat.were_calculated:
        found += [f"initial heartbeat {floors.initial:g} s"] * (heartbeat.initial == floors.initial)
        found += [f"heartbeat {floors.general:g} s"] * (heartbeat.subsequent == floors.general)
    if section is not None:
        for name in sorted(section.calculated_sections):
            if section.section.get(name) == floors.of_section(name):
                found.append(f"section {name!r} {floors.of_section(name):g} s")
        if section.is_out_of_section_calculated and section.out_of_section == floors.general:
            found.append(f"out of section {floors.general:g} s")
    return found


def raised_to_floor(
    heartbeat: HeartbeatTimeouts, section: SectionTimeouts, floors: Floors
) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """The same limits with the learned ones at their floor at least: a state may come from a job without floors."""
    if heartbeat.were_calculated:
        heartbeat = HeartbeatTimeouts(
            _at_least(heartbeat.initial, floors.initial),
            _at_least(heartbeat.subsequent, floors.general),
            True,
        )
    sections = {
        name: _at_least(limit, floors.of_section(name)) if name in section.calculated_sections else limit
        for name, limit in section.section.items()
    }
    out = section.out_of_section
    if section.is_out_of_section_calculated:
        out = _at_least(out, floors.general)
    return heartbeat, SectionTimeouts(
        sections, out, section.calculated_sections, section.is_out_of_section_calculated
    )


def unobserved(
    longest: Mapping[str, float], selected: Collection[str], out_of_section: float | None
) -> list[str]:
    """What is missing before limits of the selected sections can be learned, in words; empty when ready."""
    missing = [f"section {name!r} was never closed" for name in selected if longest.get(name, 0) <= 0]
    if out_of_section is not None and out_of_section <= 0:
        missing.append("no time out of section was seen")
    return missing


def _at_least(limit: float | None, floor: float) -> float | None:
    return None if limit is None else max(limit, floor)


def _shown(limit: float | None, learned: bool | None) -> str:
    if limit is None:
        return "none"
    return f"{limit:.2f} s" + (" (learned)" if learned else "")
