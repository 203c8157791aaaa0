"""The lists of what is imported ahead, as earlier jobs have learned and kept them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ...fault_tolerance.launcher.warm import learned


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a script, or of all scripts of a folder."""

    folder: str
    modules: int | None = None
    """How many the list of this script has; None where there is none."""
    packages: frozenset[str] = frozenset()
    """Of which packages they are."""
    refused: dict[str, str] = field(default_factory=dict)
    """Packages that cannot be imported ahead, and why."""


def of_script(folder: str, script: str, *, module: bool) -> Kept:
    """The list of this script and Python in a run directory, or in the state folder."""
    file = learned.path(folder, script, module=module)
    found = learned.read(file)
    names = found.modules or []
    packages = frozenset(str(name).partition(".")[0] for name, _ in names)
    return Kept(os.path.dirname(file), None if found.modules is None else len(names), packages, found.refused)


def of_all(folder: str) -> Kept:
    """All lists there together."""
    place = os.path.join(folder, "preload")
    refused: dict[str, str] = {}
    if os.path.isdir(place):
        for name in sorted(os.listdir(place)):
            if name.endswith(".json"):
                refused |= learned.read(os.path.join(place, name)).refused
    return Kept(place, refused=refused)
