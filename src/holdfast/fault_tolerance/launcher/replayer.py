"""Replays the recorded decisions of a launcher through today's controller, and finds where it differs. Pure.

Each snapshot of the state begins anew, so a journal may begin in the middle. The state that the replay has reached is
compared with it first. After a difference the replay continues in the state that today's controller has reached, so
later differences may follow from it. Where records are missing it continues at the next snapshot.

Does not cover: how the driver carried out the actions, and when `next_deadline` wanted a `Tick`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from typing import Any

from ...journal.event import Event
from ...visible import escaped
from .control import controller
from .control import messages as m
from .control.node import Node
from .recorder import (
    FIELDS,
    Unreadable,
    decision_state,
    decode,
    describe,
    observations,
    restore,
    without_heartbeat,
)

KINDS = "controller", "decision"
"""The events of the journal that are replayed."""
LONGEST = 100
WIDE = 500
"""Characters of a field's value that a line shows, and that a line about a difference in the state shows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded input and its result, for people."""

    t: float  # unix seconds
    cycle: int
    text: str
    differences: tuple[str, ...] = ()
    is_decision: bool = True  # an input was replayed


def replay(recorded: Iterable[Event]) -> Iterator[Line]:
    """Replay the records of one launcher in their order."""
    run = _Replay()
    for event in recorded:
        if event.kind in KINDS:
            yield run.take(event)


class _Replay:
    """One launcher's controller, as far as it was replayed."""

    def __init__(self) -> None:
        self._node: Node | None = None  # None: the next snapshot is waited for
        self._number = 0

    def take(self, event: Event) -> Line:
        """Replay one record."""
        number, cycle = event.get("number"), event.get("cycle")
        begins = event.kind == "controller" and "actions" in event.fields
        if self._node is not None and number != self._number + 1 and not begins:
            self._node = None
        self._number = number if isinstance(number, int) else -1
        try:
            run = self._snapshot if event.kind == "controller" else self._decision
            text, differences, is_decision = run(event)
        except Exception as error:  # a value of another version, or one that its controller cannot use
            self._node = None
            why = str(error) if isinstance(error, Unreadable) else f"it cannot be replayed: {describe(error)}"
            text, differences, is_decision = event.kind, (why,), True
        return Line(event.t, cycle if isinstance(cycle, int) else -1, text, differences, is_decision)

    def _snapshot(self, event: Event) -> tuple[str, tuple[str, ...], bool]:
        """Compare the state with the one that was reached, and continue from it."""
        found = _value(event, "state", Node)
        found.entered = found.phase
        if "actions" not in event.fields:
            reached, self._node = self._node, found
            differences = _state_differences(found, reached) if reached is not None else ()
            return f"state at the start of cycle {found.record.cycle}", differences, False
        self._node = found
        reached, actions = controller.begin(found.settings, found.now)
        decided, text = tuple(without_heartbeat(reached, actions)), f"begin: {shown(found.settings)}"
        differences = _differences(_value(event, "actions", tuple), decided)
        return _with_actions(text, decided), (*differences, *_state_differences(found, reached)), True

    def _decision(self, event: Event) -> tuple[str, tuple[str, ...], bool]:
        """Run one input through today's controller."""
        node = self._node
        if node is None:
            return "not replayed: records before this one are missing", (), False
        taken = _value(event, "event", m.Event)
        restore(node, _value(event, "observed", dict) if "observed" in event.fields else {})
        if isinstance(taken, m.StoreView) and (prefix := event.get("prefix", 0)):
            taken = replace(taken, value=node.view.get(taken.key, "")[:prefix] + taken.value)
        phase, failure = type(node.phase).__name__.upper(), ""
        differences: tuple[str, ...]
        actions: tuple[m.Action, ...] = ()
        try:
            actions = tuple(without_heartbeat(node, controller.step(node, taken, event.get("now"))))
        except Exception as error:
            failure = describe(error)
        if "error" in event.fields or failure:
            recorded = str(event.get("error", "no error"))
            lines = f"recorded: {escaped(recorded)}", f"today:    {escaped(failure or 'no error')}"
            differences = lines if recorded != failure else ()
        else:
            differences = _differences(_value(event, "actions", tuple), actions)
        return _with_actions(f"{phase} {shown(taken)}", actions), differences, True


def _value(event: Event, name: str, wanted: type) -> Any:
    found = decode(event.get(name))
    if not isinstance(found, wanted):
        raise Unreadable(f"a value of another version: {name} is a {type(found).__name__}")
    return found


# -- what differs ---------------------------------------------------------------------------------------------


def _differences(recorded: tuple[Any, ...], today: tuple[Any, ...]) -> tuple[str, ...]:
    if recorded == today:
        return ()
    return (f"recorded: {_actions(recorded, 0)}", f"today:    {_actions(today, 0)}")


def _state_differences(recorded: Node, reached: Node) -> tuple[str, ...]:
    """The parts of the state in which the two differ."""
    pairs = (
        (decision_state(recorded), decision_state(reached)),
        (observations(recorded), observations(reached)),
    )
    found = []
    for before, now in pairs:
        for name in [name for name in before if before[name] != now[name]]:
            old, new = before[name], now[name]
            if isinstance(old, dict):
                old, new = _unlike(old, new), _unlike(new, old)
            found.append(f"state differs in {name}: recorded {shown(old, WIDE)}; today {shown(new, WIDE)}")
    return tuple(found)


def _unlike(values: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in other or other[name] != value}


# -- texts ----------------------------------------------------------------------------------------------------


def _with_actions(text: str, actions: tuple[m.Action, ...]) -> str:
    return f"{text} -> {_actions(actions, LONGEST)}"


def _actions(actions: tuple[Any, ...], longest: int) -> str:
    return "; ".join(shown(action, longest) for action in actions) or "nothing"


def shown(value: Any, longest: int = LONGEST) -> str:
    """The value in one line; fields that have their default are left out, and long ones are cut (0: never)."""
    if type(value) not in FIELDS:
        text = escaped(repr(value.value if isinstance(value, Enum) else value))
        return text if not longest or len(text) <= longest else f"{text[: longest - 1]}…"
    found = []
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if (given := getattr(value, each.name)) != default:
            found.append(f"{each.name}={shown(given, longest)}")
    return f"{type(value).__name__}({', '.join(found)})"
