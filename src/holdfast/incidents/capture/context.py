"""Which part of which job a node's ranks are, as its launcher has it; and why evidence is taken.

The launcher writes the context into the folder of each cycle's boards.
Does not cover: a file that was removed; evidence is then of an unnamed node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..evidence import PassedLimit, TriggerKind

FILE = "place.json"


@dataclass(frozen=True, slots=True)
class NodeContext:
    """This node in one cycle; the fields are those of `NodeEvidence`."""

    node: str = ""
    node_rank: int = 0
    nodes: int = 1
    world_size: int = 0
    run_id: str = ""
    cycle: int = 0
    cycle_start: float = 0.0

    def write(self, folder: str) -> None:
        """Write it into the folder of the cycle's boards. Raises OSError."""
        path = os.path.join(folder, FILE)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, folder: str) -> NodeContext:
        """What the launcher has written there; a blank one where there is none that can be read."""
        try:
            with open(os.path.join(folder, FILE), encoding="utf-8") as file:
                value = json.load(file)
            return cls(**{each.name: value[each.name] for each in fields(cls) if each.name in value})
        except (OSError, ValueError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why evidence is taken."""

    kind: TriggerKind
    accused: int | None = None
    """The rank that passed its limit, or ended."""
    passed: Mapping[int, PassedLimit] | None = None
    """Limits that are passed, by rank."""
