"""Defects that the simulator has to find: each takes one rule out of the controller, or turns it round.

The first ones are decisions that the former control plane made; `../launcher` reviews of it name them. A mutation that
no seed finds means that an invariant, or a fault, is missing. Those that few seeds find have a job of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.control import (
    agreed_stop,
    controller,
    gathering,
    messages,
    node,
    records,
    running,
    stopping,
)
from holdfast.fault_tolerance.stop.rules import COMMIT, Word, ahead

from .scenarios import Fault, plain
from .world import Scenario

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A defect, and how the controller gets it."""

    name: str
    patch: Patch
    kinds: tuple[str, ...] = ()  # faults; empty: all
    job: Scenario | None = None  # that shows it; None: one of the seeds


def _set(target: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(target, name, value)


def _replace(phase: type, enter: Any = None, on: Any = None) -> Patch:
    """Another function for entering a phase, or for its events."""
    before = controller.PHASES[phase]
    return lambda patch: patch.setitem(controller.PHASES, phase, (enter or before[0], on or before[1]))


def _leaves_in_silence(self: node.Node, phase: node.Leave, now: float) -> list[messages.Action]:
    phase.has_ended = True
    return [messages.Exit(phase.code)]


def _one_broken_connection_ends_it(self: node.StoreContact, patience: float, now: float) -> bool:
    return now - self.answered > 2.5


def _budget_of_each_launcher(patch: pytest.MonkeyPatch) -> None:
    """`--ft-restarts-reset-on-progress` compares with what this launcher remembers: nothing."""
    original = records.Ending.restart

    def restart(self: records.Ending, *args: Any, **changes: Any) -> records.CycleRecord:
        return original(replace(self, now=replace(self.now, reached_step=-1)), *args, **changes)

    patch.setattr(records.Ending, "restart", restart)


def _wedged_launcher_looks_alive(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats that do not come from `step`: here, none while the ranks are stopped."""
    original = controller._beat

    def beat(self: node.Node) -> list[messages.Action]:
        return [] if isinstance(self.phase, node.Stop | node.Preempt) else original(self)

    patch.setattr(controller, "_beat", beat)


def _evidence_twice(self: node.Node, phase: node.Settle, now: float) -> list[messages.Action]:
    self.evidence = ""
    return running.enter_settle(self, phase, now)


def _signal_is_lost_in_start(
    self: node.Node, phase: node.Start, event: Any, now: float
) -> list[messages.Action]:
    return [] if isinstance(event, messages.Signal) else running.on_start(self, phase, event, now)


def _spares_before_those_that_trained(patch: pytest.MonkeyPatch) -> None:
    original = gathering.place

    def place(nodes: Any, previous: Any, most: int) -> Any:
        spares = original(
            [node for node in nodes if node.node not in previous.names], records.Membership(()), most
        )
        trained = [node for node in nodes if node.node in previous.names]
        return spares + original(trained, records.Membership(()), most - len(spares))

    patch.setattr(gathering, "place", place)


def _next_cycle_before_the_last_ends(
    self: node.Node, phase: node.Stop, event: Any, now: float
) -> list[messages.Action]:
    actions = stopping.on_stop(self, phase, event, now)
    if phase.next is not None and self.phase is phase and phase.next.kind is not records.Kind.END:
        actions += stopping.move_on(self, phase.next, now)
    return actions


def _kills_at_once(self: node.Node, phase: node.Stop) -> dict[int, float]:
    return dict.fromkeys((rank.local for rank in self.running), phase.term_at or messages.NEVER)


def _end_when_the_first_is_done(
    self: node.Node, phase: node.Done, event: Any, now: float
) -> list[messages.Action]:
    return self.propose(self.ending(now).end("all ranks succeeded", 0))


def _own_exit_code(patch: pytest.MonkeyPatch) -> None:
    original = stopping.move_on

    def move_on(self: node.Node, record: records.CycleRecord, now: float) -> list[messages.Action]:
        if record.kind is records.Kind.END and record.node != self.name:
            record = replace(record, exit_code=1)
        return original(self, record, now)

    patch.setattr(stopping, "move_on", move_on)


def _commits_without_all(
    self: agreed_stop.AgreedStop, job: node.Node, number: int, reached: int
) -> list[messages.Action]:
    return self._write(job, Word(COMMIT, number, ahead(reached, 1)))


def _record_is_overwritten(self: node.Node, record: records.CycleRecord) -> list[messages.Action]:
    return [messages.Put(records.key("cycle", record.cycle), record.encode())]


def _sick_node_leaves_by_itself(
    self: node.Node, phase: node.Gather, event: Any, now: float
) -> list[messages.Action]:
    if self.may_leave:
        self.phase = node.Leave(0, "it is sick", "excluded")
        return []
    return gathering.on_gather(self, phase, event, now)


IN_A_RESTART, SPARES = ("in_a_restart",), ("flapping_spare", "launch", "replace")
SIGNALS, BEHIND = ("sigterm", "sigterm_some"), ("exclude", "lose_most", "launch")
ALL_ARE_LOST: list[Fault] = [
    (8.0, "request", (0, "exclude_this_node")),
    (20.0, "power_off", (1,)),
    (20.1, "power_off", (1,)),
]
"""The host of the store is excluded, then both nodes that train vanish, and a spare is left."""
MUTATIONS = (
    # decisions of the former control plane
    Mutation("a node leaves without a reason", _replace(node.Leave, _leaves_in_silence)),
    Mutation(
        "one broken connection ends a launcher",
        _set(node.StoreContact, "host_lost", _one_broken_connection_ends_it),
        job=plain(2, [(10.0, "suspend", (0, 4.0))]),
    ),
    Mutation(
        "each launcher has its own restart budget",
        _budget_of_each_launcher,
        job=replace(plain(2, []), max_restarts=1, reset=True, bug_at=23),
    ),
    Mutation(
        "a file that cannot be read is no progress",
        _set(records.Ending, "is_measured", True),
        ("kill_rank", "two_failures"),
    ),
    Mutation(
        "ranks start before the first number is read",
        _set(node.Node, "is_reading", lambda self, now: isinstance(self.phase, node.Settle)),
        ("kill_rank", "two_failures"),
    ),
    Mutation("heartbeats do not come from step", _wedged_launcher_looks_alive),
    Mutation("evidence is taken twice", _replace(node.Settle, _evidence_twice)),
    Mutation(
        "a signal is lost while ranks start", _replace(node.Start, on=_signal_is_lost_in_start), IN_A_RESTART
    ),
    Mutation("the rest waits for a node that failed", _set(gathering, "FAILED_WAIT", 1e9), ("break_start",)),
    Mutation("nodes leave with exit codes of their own", _own_exit_code),
    Mutation(
        "the store's host does not leave last", _set(stopping, "has_other_launchers", lambda *args: False)
    ),
    # the rules of this one
    Mutation("spares come before nodes that trained", _spares_before_those_that_trained, SPARES),
    Mutation("nodes that trained are not waited for", _set(gathering, "missing", lambda *args: []), SPARES),
    Mutation("ranks start before all nodes are ready", _set(gathering, "_all_ready", lambda self: True)),
    Mutation(
        "a cycle begins before the last one has ended",
        _replace(node.Stop, on=_next_cycle_before_the_last_ends),
    ),
    Mutation("there is no grace period", _set(stopping, "stop_deadlines", _kills_at_once)),
    Mutation("a rank that saves has no more time than others", _set(stopping, "SAVING", 0.0)),
    Mutation(
        "a suspended launcher counts as lost",
        _set(node.LocalProgress, "patience", lambda self, limit: limit),
        ("suspend",),
    ),
    Mutation("restarts to let nodes join are not limited", _set(records, "JOIN_INTERVAL", 0.0), SPARES),
    Mutation("the job ends when one node is done", _replace(node.Done, on=_end_when_the_first_is_done)),
    Mutation(
        "a stop is committed before all agreed",
        _set(agreed_stop.AgreedStop, "_ask", _commits_without_all),
        SIGNALS,
    ),
    Mutation("a cycle record is overwritten", _set(node.Node, "propose", _record_is_overwritten)),
    Mutation(
        "spares do not see that no member is left",
        _set(gathering, "_watch_members", lambda *args: []),
        job=replace(plain(4, ALL_ARE_LOST), least=1, most=2, total=60.0),
    ),
    Mutation(
        "only the host can choose",
        _set(gathering, "_chooses", lambda self, *args: self.settings.is_host),
        BEHIND,
    ),
    Mutation(
        "a rank that raised is not ended", _set(running, "watch_exits", lambda *args: []), ("raise_and_stay",)
    ),
    Mutation("a sick node leaves by itself", _replace(node.Gather, on=_sick_node_leaves_by_itself)),
)
