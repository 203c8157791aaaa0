"""Events of the journal: a line of it as a value, and the lines sorted into runs and restart cycles. Pure.

A line is one JSON object. `t` (unix seconds) and `mono` (monotonic seconds, comparable on one node between two
starts of the machine) are the time, `node` is the node that wrote it, `kind` is what happened. Everything else belongs
to the kind. An event that carries a `node`, `t` or `mono` of its own (`node_lost` names the lost node) replaces these.
Encoding never fails, whatever it is given, and yields exactly one line of strict JSON, with `kind` at its end.

A *run* is one life of the job: from the first `cycle_start` of cycle 0 to the end. A run directory that is used again,
as when a scheduler requeues the job, holds several. A *cycle* is one start of all ranks, on all nodes together. Every
event is in exactly one cycle, cycles have the order in which they began, and a node that joins late or is started
again is sorted into the cycle of the others.

Does not cover: the meaning of a kind's fields (docs/reference/journal.md has it); two runs at once in one run
directory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT = 8000
"""Characters of one string that are kept: a traceback fits, a runaway repr does not fill the disk."""

LATEST_START = 60.0
"""Seconds in which all nodes begin cycle 0. A node that joins later begins another one."""

DEEPEST = 8
"""Levels of nesting that are kept. It also ends structures that contain themselves."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    kind: str
    t: float
    """Unix seconds, by the wall clock of the node that wrote it."""
    mono: float
    """Monotonic seconds of that node's machine."""
    node: str
    """The node that it is about: the one that wrote it, unless the event names another."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The node whose journal has it; filled by the reader."""

    def get(self, name: str, default: Any = None) -> Any:
        """A field of this kind of event, or the default."""
        return self.fields.get(name, default)

    def text(self, name: str) -> str:
        """A field in one line of text; empty where it is missing, null or empty."""
        return " ".join(str(self.fields.get(name) or "").split())

    def number(self, name: str) -> int | None:
        """A field that is a whole number; None where it is none."""
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def seconds(self, name: str) -> float:
        """A field that is a duration, 0 or more; 0 where it is none."""
        value = self.fields.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return round(max(0.0, float(value)), 3)
        return 0.0


def encode(kind: str, fields: Mapping[str, Any], *, t: float, mono: float, node: str) -> bytes:
    """The event as one line, newline included. What JSON does not have is written as its `repr`."""
    record = {"t": round(t, 6), "mono": round(mono, 6), "node": node}
    for name, value in fields.items():
        record[str(name)] = _plain(value, DEEPEST)
    record["kind"] = kind
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str, source: str = "") -> Event | None:
    """The event in a line, or None for a line that is torn, empty or no event.

    Fields and kinds that this version does not have are kept as they are: a newer version may have written them.
    """
    try:
        text = (line if isinstance(line, str) else line.decode()).strip()
        record, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # ValueError includes bytes that are no UTF-8
        return None
    if not isinstance(record, dict) or end != len(text):
        return None
    pop = record.pop  # a million lines of a large run
    t, mono, node, kind = pop("t", None), pop("mono", None), pop("node", None), pop("kind", None)
    is_timed = type(t) in _NUMBERS and type(mono) in _NUMBERS and math.isfinite(t) and math.isfinite(mono)
    if not (is_timed and isinstance(node, str) and isinstance(kind, str)):
        return None
    return Event(kind, float(t), float(mono), node, record, source or node)


_DECODER = json.JSONDecoder()
_NUMBERS = (float, int)


def _plain(value: Any, levels: int) -> Any:
    """The value in what JSON has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # IntEnum too; beyond 64 bits other readers of JSON lose digits
        return int(value) if abs(value) < 2**63 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)  # strict JSON has no NaN
    if isinstance(value, str):
        return _short(value)
    if levels > 0 and isinstance(value, Mapping):
        return {_short(str(name)): _plain(inner, levels - 1) for name, inner in value.items()}
    if levels > 0 and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, levels - 1) for inner in value]
    try:
        return _short(repr(value))
    except Exception as error:  # the repr of a stranger's object may do anything
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}… [{len(text) - 2 * half} characters left out] …{text[-half:]}"


@dataclass(slots=True)
class Cycle:
    """One restart cycle of all nodes. Events before the first start are in cycle 0."""

    run: int
    number: int
    events: list[Event] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]


def cycles(events: Iterable[Event]) -> list[Cycle]:
    """Sort events, as the reader gives them, into cycles."""
    found: dict[tuple[int, int], Cycle] = {}
    sorter = CycleSorter()
    for event in events:
        place = sorter.cycle_of(event)
        if place not in found:
            found[place] = Cycle(*place)
        found[place].events.append(event)
    return list(found.values())


class CycleSorter:
    """Finds the cycle of one event after the other."""

    def __init__(self) -> None:
        self._run = 1
        self._latest = 0
        self._of_this_run: set[int] = set()
        self._begun: set[str] = set()  # sources that have begun a cycle in this run
        self._gone: set[str] = set()  # sources that have ended it; an excluded node does so before the others
        self._began_at = 0.0  # when the first of them did

    def cycle_of(self, event: Event) -> tuple[int, int]:
        """The number of the run, from 1, and of the cycle that the event names, if the run has it, else the latest."""
        number = event.get("cycle")
        if not isinstance(number, int):
            number = None
        elif event.kind == "restart":
            number -= 1  # it names the cycle that it leads to, and belongs to the end of the one before
        is_over = bool(self._begun) and self._begun <= self._gone
        if event.kind == "cycle_start" and number is not None:
            is_late = bool(self._begun) and event.t - self._began_at > LATEST_START
            if number == 0 and (event.source in self._begun or self._begun & self._gone or is_late):
                self._begin_run()
            self._began_at = self._began_at if self._begun else event.t
            self._begun.add(event.source)
            if number not in self._of_this_run:
                self._of_this_run.add(number)
                self._latest = number
        elif event.kind == "run_start" and is_over:
            self._begin_run()
        elif event.kind == "run_end":
            self._gone.add(event.source)
        if not self._of_this_run:
            self._of_this_run.add(0)
        return self._run, number if number in self._of_this_run else self._latest

    def _begin_run(self) -> None:
        self._run += 1
        self._latest = 0
        self._of_this_run = {0}
        self._begun.clear()
        self._gone.clear()
