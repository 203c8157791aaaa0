"""Which part of which job a node's ranks are, as the launcher knows it; and why evidence is taken.

The launcher leaves it beside the boards of each cycle. Does not cover: a file that somebody removed; the monitor then
tells of ranks of an unnamed node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .evidence import PassedLimit

FILE = "place.json"


@dataclass(frozen=True, slots=True)
class Place:
    """This node in one cycle."""

    node: str = ""
    node_rank: int = 0
    nodes: int = 1
    world_size: int = 0
    run_id: str = ""
    cycle: int = 0

    def leave(self, folder: str) -> None:
        """Write it into the folder of the cycle's boards. Raises OSError."""
        path = os.path.join(folder, FILE)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def found(cls, folder: str) -> Place:
        """What the launcher has left there; a blank one where there is none that can be read."""
        try:
            with open(os.path.join(folder, FILE), encoding="utf-8") as file:
                told = json.load(file)
            return cls(**{each.name: told[each.name] for each in fields(cls) if each.name in told})
        except (OSError, ValueError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why evidence is taken."""

    trigger: str
    """One of the triggers of :mod:`.evidence`."""
    accused: int | None = None
    """The rank that passed its limit, or ended."""
    passed: Mapping[int, PassedLimit] | None = None
    """Limits that are passed, by rank."""
