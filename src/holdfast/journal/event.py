"""One line of the journal: an event, as JSON on disk and as a value in memory. Pure.

A line is one JSON object. `t` (unix seconds) and `mono` (monotonic seconds, comparable on one node between two
starts of the machine) say when, `node` who tells it, `kind` what happened; everything else belongs to the kind.
An event that carries a `node`, `t` or `mono` of its own (`node_lost` names the node that is lost) replaces the
teller's. What always holds: encoding never fails, whatever it is given, and yields exactly one line of strict JSON.

Does not cover: what a kind's fields mean; that stands where the event is recorded and in the documentation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT = 8000
"""Characters of one string that are kept: a traceback fits, a runaway repr does not fill the disk."""

DEEPEST = 8
"""Levels of nesting that are kept. It also ends structures that contain themselves."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as a journal tells it."""

    kind: str
    t: float
    """Unix seconds, by the teller's wall clock."""
    mono: float
    """Monotonic seconds of the teller's machine."""
    node: str
    """Whom it is about: the teller, unless the event names another node."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    teller: str = ""
    """The node whose journal it stands in; filled by the reader."""

    def get(self, name: str, default: Any = None) -> Any:
        """A field of this kind of event, or the default."""
        return self.fields.get(name, default)


def encode(kind: str, fields: Mapping[str, Any], *, t: float, mono: float, node: str) -> bytes:
    """The event as one line, newline included. What JSON cannot say is written as its `repr`."""
    record = {"t": round(t, 6), "mono": round(mono, 6), "node": node}
    for name, value in fields.items():
        record[str(name)] = _plain(value, DEEPEST)
    record["kind"] = kind
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str, teller: str = "") -> Event | None:
    """The event in a line, or None for a line that is torn, empty or no event.

    Fields and kinds that this version does not know are kept as they are: a newer version may have written them.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # ValueError includes bytes that are no UTF-8
        return None
    if not isinstance(record, dict):
        return None
    t, mono, node, kind = (record.pop(name, None) for name in ("t", "mono", "node", "kind"))
    if not (_is_time(t) and _is_time(mono) and isinstance(node, str) and isinstance(kind, str)):
        return None
    return Event(kind, float(t), float(mono), node, record, teller or node)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _plain(value: Any, levels: int) -> Any:
    """The value in what JSON can say."""
    if value is None or isinstance(value, (bool, int)):
        return value if not isinstance(value, int) else _number(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)  # strict JSON has no NaN
    if isinstance(value, str):
        return _short(value)
    if levels > 0 and isinstance(value, Mapping):
        return {_short(str(name)): _plain(inner, levels - 1) for name, inner in value.items()}
    if levels > 0 and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, levels - 1) for inner in value]
    return _short(_described(value))


def _number(value: int) -> int | str:
    # bool and IntEnum (signal.SIGTERM) included; beyond 64 bits other readers of JSON lose digits, or fail
    if isinstance(value, bool):
        return value
    return int(value) if abs(value) < 2**63 else hex(value)


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # the repr of a stranger's object may do anything
        return f"<{type(value).__name__}, whose repr failed: {type(error).__name__}>"


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}… [{len(text) - 2 * half} characters left out] …{text[-half:]}"
