"""Simulates the job of a seed; where an invariant is violated, finds the shortest list of faults that shows it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.fault_tolerance.launcher.recorder import Recorder
from holdfast.fault_tolerance.launcher.replayer import Line, replay
from holdfast.journal.event import decode, encode

from .invariants import CheckedWorld
from .scenarios import scenario
from .world import Scenario, Violation, World

LINES = 60
"""Events and actions before the violation that are printed."""


@dataclass(frozen=True)
class Outcome:
    """What came of a seed; `violation` is "" where every invariant held."""

    seed: int
    steps: int
    violation: str = ""
    story: str = ""
    transitions: frozenset[tuple[str, str, str]] = frozenset()
    log_texts: frozenset[str] = frozenset()


def simulate(seed: int, nodes: int | None = None, minutes: float = 1.0) -> Outcome:
    """Simulate the job of this seed."""
    found = scenario(seed, nodes, minutes)
    world, violation = run(found)
    if not violation:
        return Outcome(seed, world.steps, "", "", frozenset(world.transitions), frozenset(world.log_texts))
    return Outcome(seed, world.steps, violation, story(shortened(found)))


def run(found: Scenario) -> tuple[CheckedWorld, str]:
    """Simulate; returns the world at its end, and the violation or ""."""
    world = CheckedWorld(found)
    try:
        world.run()
    except Violation as violation:
        return world, str(violation)
    except Exception:
        return world, traceback.format_exc()
    return world, ""


def shortened(found: Scenario) -> Scenario:
    """The scenario without the faults that the violation does not need."""
    index = 0
    while index < len(found.faults):
        fewer = replace(found, faults=[*found.faults[:index], *found.faults[index + 1 :]])
        if run(fewer)[1]:
            found = fewer
        else:
            index += 1
    return found


def story(found: Scenario) -> str:
    """The scenario, and the last events and actions of all nodes."""
    world, violation = run(found)
    lines = sorted((at, node.name, text) for node in world.launchers for at, text in node.trace)
    shown = [f"  {at:9.3f} {name:4} {text[:200]}" for at, name, text in lines if "alive/" not in text]
    faults = "\n".join(f"  {at:9.3f} {name}{args}" for at, name, args in found.faults)
    head = [f"  {replace(found, faults=[])}", "faults:", faults, "last events (<-) and actions:"]
    return "\n".join([*head, *shown[-LINES:], f"  {violation}"])


# -- decisions as they are recorded, and replayed ------------------------------------------------------------


class RecordedWorld(World):
    """A world with the lines of each launcher's journal."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.journals: dict[str, list[bytes]] = {}
        self._recorders: dict[str, Recorder] = {}
        self.inputs = 0

    def controller(self, name: str) -> Any:
        """A recorder in front of the controller."""
        if name not in self._recorders:
            lines = self.journals.setdefault(name, [])

            def record(kind: str, **values: Any) -> None:
                lines.append(encode(kind, values, t=1.8e9 + self.now, mono=self.now, node=name))

            self._recorders[name] = Recorder(record)
        self.inputs += 1
        return self._recorders[name]


def recorded(seed: int) -> RecordedWorld:
    """The simulated job of this seed, at its end."""
    world = RecordedWorld(scenario(seed))
    world.run()
    return world


def replayed(lines: Sequence[bytes]) -> list[Line]:
    """A replay of one launcher's journal."""
    return list(replay(event for line in lines if (event := decode(line))))
