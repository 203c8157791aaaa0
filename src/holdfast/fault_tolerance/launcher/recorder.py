"""Runs the node controller for the driver, and records its decisions in the journal, so that they can be replayed.

Two kinds of events: `controller` has the whole state of the controller, when the launcher begins and at the start of
each cycle. `decision` has one input, the actions that it led to, and what was observed since the decision before.
An input is left out when it only changed observations. That is a `Tick` or the heartbeat of another node that led to no
action but this node's heartbeat, and that left the decision state as it was. A job without incidents records nothing.

What always holds: a replay of what is recorded decides the same as the controller did, because each decision carries
the observations that it depends on. Recording never changes an action and never raises.
Does not cover: reading the journal, see :mod:`.replayer`; `next_deadline` and `watched_keys`, which follow from the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from .codec import FIELDS, pack
from .control import controller
from .control import messages as m
from .control.node import Node, Settings
from .control.records import key

OBSERVED = {"view", "contact", "tick", "progress"}
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
        """As :func:`.controller.begin`."""
        node, actions = controller.begin(settings, now)
        self._keep("controller", node, lambda: self._snapshot(node, actions))
        return node, actions

    def step(self, node: Node, event: m.Event, now: float) -> list[m.Action]:
        """As :func:`.controller.step`."""
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
            found.pop("tick", None)  # this event replaces it
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
    """What the controller observed. It does not change with the node."""
    return {
        "tick": node.tick,
        "answered": node.contact.answered,
        "since": dict(node.contact.since),
        "has_moved": set(node.contact.has_moved),
        "progress": copy(node.progress),
        "view": dict(node.view),
    }


def changes(now: Observations, before: Observations) -> Observations:
    """What is new; of dictionaries and sets the new entries. An input that was left out removes none."""
    found: Observations = {}
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            value = {each: value[each] for each in value if each not in old or old[each] != value[each]}
        elif isinstance(value, set) and isinstance(old, set):
            value = value - old
        elif value == old:
            continue
        if value or not isinstance(value, dict | set):
            found[name] = value
    return found


def restore(node: Node, observed: Observations) -> None:
    """Take over what :func:`changes` has found."""
    node.tick = observed.get("tick", node.tick)
    node.progress = observed.get("progress", node.progress)
    node.contact.answered = observed.get("answered", node.contact.answered)
    node.contact.since.update(observed.get("since", {}))
    node.contact.has_moved |= observed.get("has_moved", set())
    node.view.update(observed.get("view", {}))


def describe(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"
