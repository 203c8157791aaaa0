"""What a job has left behind, read for the scoring: notes, journals, reports, the launchers' words.

What always holds: reading never fails for what a job did not write, or wrote only half.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """One folder incidents/NNNN."""

    path: str
    verdict: dict[str, Any]
    schema: int
    cycle: int
    ranks: tuple[int, ...]
    lines: int
    """Of report.txt; 0 where there is none."""


@dataclass(frozen=True)
class Facts:
    """Everything that scoring looks at."""

    codes: tuple[int | None, ...] = ()
    """Of each node's launcher; None: it had to be ended."""
    happened: float | None = None
    """When the fault happened, monotonic seconds; None: it did not."""
    result: str = ""
    cycles: int = 0
    """How many of them ranks began."""
    journals: tuple[tuple[Event, ...], ...] = ()
    reports: tuple[Report, ...] = ()
    left: tuple[str, ...] = ()
    """What was still there when the launchers had ended."""
    log: str = field(default="", repr=False)
    lost: int | None = None
    """The node that the corpus itself has killed."""
    seconds: float = 0.0


def happened(folder: Path) -> float | None:
    """The first moment, of any rank."""
    moments = []
    for note in folder.glob("happens-*"):
        with suppress(OSError, ValueError, KeyError):
            moments.append(float(json.loads(note.read_text())["mono"]))
    return min(moments, default=None)


def cycles(folder: Path) -> int:
    """How many cycles ranks began."""
    return 1 + max((int(note.name.split("-")[1]) for note in folder.glob("began-*")), default=-1)


def text(path: Path) -> str:
    """ "" where there is no such file."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def journals(folder: Path) -> tuple[tuple[Event, ...], ...]:
    """Of every launcher, whichever run directory it has."""
    found = sorted(folder.glob("run*/**/journal-*.jsonl"))
    return tuple(tuple(_events(path)) for path in found if ".rank-" not in path.name)


def _events(path: Path) -> list[Event]:
    events = []
    for line in text(path).splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events


def reports(folder: Path) -> tuple[Report, ...]:
    """All that there are, in the order of their folders."""
    found = []
    for path in sorted(folder.glob("run*/**/incidents/[0-9]*/incident.json")):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            found.append(_report(path))
    return tuple(found)


def _report(path: Path) -> Report:
    told = json.loads(path.read_text())
    nodes = told["nodes"]
    return Report(
        str(path.parent),
        told["verdict"],
        int(told["schema"]),
        min((int(node.get("cycle", 0)) for node in nodes), default=0),
        tuple(sorted(int(rank["rank"]) for node in nodes for rank in node["ranks"])),
        len(text(path.with_name("report.txt")).splitlines()),
    )
