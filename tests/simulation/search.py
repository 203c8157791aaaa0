"""Simulates the job of a seed; where an invariant is violated, finds the shortest list of faults that shows it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from .invariants import CheckedWorld
from .scenarios import scenario
from .world import Scenario, Violation

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
