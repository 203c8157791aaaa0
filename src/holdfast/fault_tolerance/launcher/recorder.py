"""Runs the node controller for the driver, and records its decisions in the journal, so that they can be replayed.

Two kinds of events: `controller` has the whole state of the controller, when the launcher begins and at the start of
each cycle. `decision` has one input, the actions that it led to, and what was observed since the decision before.
An input is left out when it only changed observations. That is a `Tick` or the heartbeat of another node that led to no
action but this node's heartbeat, and that left the decision state as it was. While ranks train without incidents
nothing is recorded.

Values are JSON (:func:`encode`). A dataclass is an object: "$" has its type, and a field that is empty by default is
left out while it is empty. A tuple is a list. Other types that JSON does not have are `{"$": type, "value": ...}`. A
value of more than 8,000 characters is compressed, because the journal cuts texts.

What always holds: a replay of what is recorded decides the same as the controller did, because each decision carries
the observations that it depends on. Recording never changes an action and never raises. `encode` never fails, and only
the types of :data:`TYPES` are ever made from a journal. A field that this version does not have is ignored, and one
that is missing has its default.
Does not cover: reading the journal, see :mod:`.replayer`; `next_deadline` and `watched_keys`, which follow from the
state; values inside another type of the same fields, which are read as what the journal names.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from ...journal.event import LONGEST_TEXT
from ..errors import HoldfastError
from ..stop.rules import RankView, Word
from .control import agreed_stop, controller, messages, node, records
from .control import messages as m
from .control.node import Node
from .control.records import Settings, key

# -- values as JSON -------------------------------------------------------------------------------------------

MODULES = (agreed_stop, messages, node, records)
TYPES: dict[str, type] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__
} | {"Word": Word, "RankView": RankView}
"""The types that a journal may have, by name."""


def _empty(field: Field[Any]) -> Any:
    """The value for which a field is left out: its default, if that is empty; else `MISSING`."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return MISSING if default else default


FIELDS: dict[Any, dict[str, Any]] = {
    cls: {each.name: _empty(each) for each in fields(cls)} for cls in TYPES.values() if is_dataclass(cls)
}
"""The dataclasses with their fields, each with the value for which it is left out."""
COLLECTIONS: dict[str, Callable[[Any], Any]] = {"list": list, "set": set, "frozenset": frozenset}


class Unreadable(HoldfastError):
    """A value that this version cannot read; the message names what is wrong with it."""


def encode(value: Any) -> Any:
    """The value as JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum) and type(value) is TYPES.get(type(value).__name__):
        return {"$": type(value).__name__, "value": value.value}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
    if (names := FIELDS.get(type(value))) is not None:
        found = {name: each for name, empty in names.items() if (each := getattr(value, name)) != empty}
        return {"$": type(value).__name__, **{name: encode(each) for name, each in found.items()}}
    if type(value) is records.View:
        return {"$": "View", "value": dict(value)}
    if isinstance(value, Mapping):
        if all(type(name) is str and name != "$" for name in value):
            return {name: encode(each) for name, each in value.items()}
        return {"$": "dict", "value": [[encode(name), encode(each)] for name, each in value.items()]}
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    if type(value).__name__ in COLLECTIONS:
        ordered = value if isinstance(value, list) else sorted(value, key=repr)
        return {"$": type(value).__name__, "value": [encode(each) for each in ordered]}
    return {"$": "repr", "value": repr(value)}


def pack(value: Any) -> Any:
    """The value as JSON that the journal keeps as it is: compressed where it is long."""
    encoded = encode(value)
    text = json.dumps(encoded, separators=(",", ":"))
    if len(text) <= LONGEST_TEXT:
        return encoded
    data = base64.b64encode(zlib.compress(text.encode())).decode()
    pieces = [data[at : at + LONGEST_TEXT] for at in range(0, len(data), LONGEST_TEXT)]
    return {"$": "zlib", "value": pieces}


def decode(found: Any) -> Any:
    """The reverse of :func:`encode` and :func:`pack`. Raises `Unreadable`."""
    try:
        return _decode(found)
    except (TypeError, ValueError, KeyError, AttributeError, zlib.error) as error:
        raise Unreadable(f"a value of another version: {type(error).__name__}: {error}") from None


def _decode(found: Any) -> Any:
    if isinstance(found, list):
        return tuple(_decode(each) for each in found)
    if not isinstance(found, dict):
        return found
    if "$" not in found:
        return {name: _decode(each) for name, each in found.items()}
    name, value = found["$"], found.get("value", ())
    if name in COLLECTIONS:
        return COLLECTIONS[name](_decode(each) for each in value)
    match name:
        case "float":
            return float(str(value))
        case "dict":
            return {_decode(key): _decode(each) for key, each in value}
        case "repr":
            return str(value)
        case "zlib":
            return _decode(json.loads(zlib.decompress(base64.b64decode("".join(value)))))
    cls = TYPES.get(name)
    if cls is None:
        raise Unreadable(f"a value of another version: the type {name} does not exist in this one")
    if cls not in FIELDS:
        return cls(value)
    return cls(**{each: _decode(found[each]) for each in FIELDS[cls] if each in found})


# -- decisions ------------------------------------------------------------------------------------------------

OBSERVED = {"view", "contact", "tick", "ticked_at", "progress"}
"""Fields of a `Node` that inputs change without a decision; a decision carries them."""
DERIVED = {"settings", "entered", "watched", "now", "beaten", "beats", "look_at"}
"""Fields, also of phases, on which no decision depends, or that follow from other ones."""

PARTS = {
    cls: tuple(name for name in names if name not in DERIVED)
    for cls, names in FIELDS.items()
    if not cls.__dataclass_params__.frozen
}
"""The other fields of each dataclass whose values can change."""

State = dict[str, Any]
Observations = dict[str, Any]


class Recorder:
    """Runs one controller, and records what it decides."""

    def __init__(self, record: Callable[..., None]) -> None:
        """`record` is :meth:`holdfast.journal.writer.Journal.record`."""
        self._record = record
        self._number = 0  # of the newest record
        self._cycle = -1  # of the newest snapshot
        self._state: State = {}  # after the newest decision, as are the observations
        self._observations: Observations = {}

    def begin(self, settings: Settings, now: float) -> tuple[Node, list[m.Action]]:
        """As :func:`.control.controller.begin`."""
        node, actions = controller.begin(settings, now)
        self._keep("controller", node, lambda: self._snapshot(node, actions))
        return node, actions

    def step(self, node: Node, event: m.Event, now: float) -> list[m.Action]:
        """As :func:`.control.controller.step`."""
        before = observations(node)
        try:
            actions = controller.step(node, event, now)
        except Exception as error:
            failure = {"error": describe(error)}
            self._keep("decision", node, lambda: self._decision(event, before, failure))
            raise
        kept = without_heartbeat(node, actions)
        if not kept and is_observation(event) and decision_state(node) == self._state:
            return actions
        self._keep("decision", node, lambda: self._decision(event, before, {"actions": pack(tuple(kept))}))
        if node.record.cycle != self._cycle:
            self._keep("controller", node, lambda: self._snapshot(node))
        return actions

    def _keep(self, kind: str, node: Node, make: Callable[[], Mapping[str, Any]]) -> None:
        """Write one record; a value that cannot be recorded must not end the launcher."""
        self._number += 1
        try:
            values = make()
        except Exception as error:
            values = {"unrecordable": describe(error)}
        self._record(kind, number=self._number, cycle=self._cycle, now=node.now, **values)
        self._state, self._observations = decision_state(node), observations(node)

    def _snapshot(self, node: Node, actions: list[m.Action] | None = None) -> Mapping[str, Any]:
        """The state; with `actions` it is that of a launcher that begins."""
        self._cycle = node.record.cycle
        shown = copy(node)
        shown.entered = None  # the same object as `phase`
        first = {} if actions is None else {"actions": pack(tuple(without_heartbeat(node, actions)))}
        return {**first, "state": pack(shown)}

    def _decision(
        self, event: m.Event, before: Observations, outcome: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """One input. Of a log that grew, only what is new is recorded, with the length before."""
        found = changes(before, self._observations)
        if isinstance(event, m.Tick):
            found.pop("tick", None)  # this event replaces them
            found.pop("ticked_at", None)
        prefix = {}
        if isinstance(event, m.StoreView) and (old := before["view"].get(event.key)):
            if event.value.startswith(old):
                prefix["prefix"] = len(old)
                event = replace(event, value=event.value[len(old) :])
        observed = {"observed": pack(found)} if found else {}
        return {"event": pack(event), **prefix, **observed, **outcome}


# -- what is left out -----------------------------------------------------------------------------------------


def is_observation(event: m.Event) -> bool:
    """Whether the input is of a kind that comes all the time."""
    return isinstance(event, m.Tick) or (
        isinstance(event, m.StoreView) and event.key.startswith(key("alive", ""))
    )


def without_heartbeat(node: Node, actions: list[m.Action]) -> list[m.Action]:
    """The actions without this node's heartbeat to the other nodes."""
    own = key("alive", node.name)
    return [action for action in actions if not (isinstance(action, m.Put) and action.key == own)]


def decision_state(node: Node) -> State:
    """All on which decisions depend, except observations, by field of `Node`. It does not change with the node."""
    return {name: _frozen(getattr(node, name)) for name in PARTS[Node] if name not in OBSERVED}


def _frozen(value: Any) -> Any:
    """A copy that can be compared."""
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, set):
        return frozenset(value)
    if names := PARTS.get(type(value)):
        return (type(value).__name__, *((name, _frozen(getattr(value, name))) for name in names))
    return value


# -- observations ---------------------------------------------------------------------------------------------


def observations(node: Node) -> Observations:
    """What the controller observed, by field of `Node`. It does not change with the node."""
    contact = node.contact
    return {
        "tick": node.tick,
        "ticked_at": node.ticked_at,
        "contact": replace(contact, since=dict(contact.since), has_moved=set(contact.has_moved)),
        "progress": copy(node.progress),
        "view": dict(node.view),
    }


def changes(now: Observations, before: Observations) -> Observations:
    """What is new; of the view the new values. An input that was left out removes none."""
    found = {name: value for name, value in now.items() if name != "view" and value != before.get(name)}
    old = before.get("view", {})
    view = {each: value for each, value in now["view"].items() if old.get(each) != value}
    return found | ({"view": view} if view else {})


def restore(node: Node, observed: Observations) -> None:
    """Take over what :func:`changes` has found."""
    for name, value in observed.items():
        if name == "view":
            node.view.update(value)
        elif name in OBSERVED:
            setattr(node, name, value)


def describe(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"
