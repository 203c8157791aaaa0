"""Defects that the simulator has to find: each takes one rule out of the controller, or turns it round.

The first ones are decisions that the former control plane made; `../launcher` reviews of it name them. A mutation that
no seed finds means that an invariant, or a fault, is missing.
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
    liveness,
    messages,
    node,
    records,
    running,
    stopping,
)
from holdfast.fault_tolerance.stop.notes import COMMIT, Word
from holdfast.fault_tolerance.stop.rules import ahead

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A defect, and how the controller gets it."""

    name: str
    patch: Patch
    kinds: tuple[str, ...] = ()  # faults; empty: all


def _set(target: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(target, name, value)


def _leaves_in_silence(patch: pytest.MonkeyPatch) -> None:
    def enter(self: node.Node, phase: node.Leave, now: float) -> list[messages.Action]:
        phase.exited = True
        return [messages.Exit(phase.code)]

    patch.setitem(controller.PHASES, node.Leave, (enter, stopping.on_leave))


def _one_broken_connection_ends_it(patch: pytest.MonkeyPatch) -> None:
    def lost(self: liveness.StoreContact, progress: Any, limit: float, now: float) -> bool:
        return now - self.answered > 2.5

    patch.setattr(liveness.StoreContact, "host_lost", lost)


def _budget_of_each_launcher(patch: pytest.MonkeyPatch) -> None:
    """`--ft-restarts-reset-on-progress` compares with what this launcher remembers: nothing."""
    original = records.Ending.restart

    def restart(self: records.Ending, *args: Any, **changes: Any) -> records.CycleRecord:
        return original(replace(self, now=replace(self.now, reached_step=-1)), *args, **changes)

    patch.setattr(records.Ending, "restart", restart)


def _unknown_field_ends_a_launcher(patch: pytest.MonkeyPatch) -> None:
    def built(cls: Any, values: Any, **given: Any) -> Any:
        return cls(**{**values, **given})

    patch.setattr(records, "_built", built)


def _wedged_launcher_looks_alive(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats that do not come from `step`: here, none while the ranks are stopped."""
    original = controller._beat

    def beat(self: node.Node, now: float) -> list[messages.Action]:
        return [] if isinstance(self.phase, node.Stop | node.Preempt | node.Drain) else original(self, now)

    patch.setattr(controller, "_beat", beat)


def _evidence_twice(patch: pytest.MonkeyPatch) -> None:
    original = running.enter_settle

    def enter(self: node.Node, phase: node.Settle, now: float) -> list[messages.Action]:
        self.evidence = False
        return original(self, phase, now)

    patch.setitem(controller.PHASES, node.Settle, (enter, running.on_settle))


def _signal_is_lost_in_start(patch: pytest.MonkeyPatch) -> None:
    original = running.on_start

    def on(self: node.Node, phase: node.Start, event: Any, now: float) -> list[messages.Action]:
        return [] if isinstance(event, messages.Signal) else original(self, phase, event, now)

    patch.setitem(controller.PHASES, node.Start, (running.enter_start, on))


def _no_word_of_failure(patch: pytest.MonkeyPatch) -> None:
    original = node.Node.without_me

    def without(self: node.Node, reason: str, now: float, *, code: int, preempted: bool = False) -> Any:
        return original(self, reason, now, code=code, preempted=True)

    patch.setattr(node.Node, "without_me", without)


def _spares_before_those_that_trained(patch: pytest.MonkeyPatch) -> None:
    original = gathering.place

    def place(nodes: Any, previous: Any, most: int, **facts: Any) -> Any:
        return original(nodes, None, most, **facts, behind=previous.names if previous else ())

    patch.setattr(gathering, "place", place)


def _no_wait_for_those_that_trained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gathering, "missing", lambda *args: [])


def _begins_before_all_are_ready(patch: pytest.MonkeyPatch) -> None:
    original = gathering.on_confirm

    def on(self: node.Node, phase: node.Confirm, event: Any, now: float) -> list[messages.Action]:
        actions = original(self, phase, event, now)
        if phase.go and not phase.written:
            phase.written = True
            actions.append(messages.Cas(records.go_key(self.record.cycle), "", phase.go))
        return actions

    patch.setitem(controller.PHASES, node.Confirm, (gathering.enter_confirm, on))


def _next_cycle_beside_the_last(patch: pytest.MonkeyPatch) -> None:
    def after(self: node.Node, phase: node.Stop, event: Any, now: float) -> list[messages.Action]:
        actions = stopping.on_stop(self, phase, event, now)
        if phase.next is not None and self.phase is phase and phase.next.kind is not records.Kind.END:
            actions += stopping.move_on(self, phase.next, now)
        return actions

    patch.setitem(controller.PHASES, node.Stop, (stopping.enter_stop, after))


def _grace_counts_suspended_time(patch: pytest.MonkeyPatch) -> None:
    original = controller.step

    def step(self: node.Node, event: Any, now: float) -> list[messages.Action]:
        if isinstance(event, messages.Suspended):
            return []
        return original(self, event, now)

    patch.setattr(controller, "step", step)


def _host_leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stopping, "has_company", lambda *args: False)


def _end_when_the_first_is_done(patch: pytest.MonkeyPatch) -> None:
    def on(self: node.Node, phase: node.Done, event: Any, now: float) -> list[messages.Action]:
        return self.propose(self.ending(now).end("all ranks succeeded", 0))

    patch.setitem(controller.PHASES, node.Done, (running.enter_done, on))


def _own_exit_code(patch: pytest.MonkeyPatch) -> None:
    original = stopping.move_on

    def move_on(self: node.Node, record: records.CycleRecord, now: float) -> list[messages.Action]:
        if record.kind is records.Kind.END and record.node != self.name:
            record = replace(record, exit_code=1)
        return original(self, record, now)

    patch.setattr(stopping, "move_on", move_on)


def _commits_without_all(patch: pytest.MonkeyPatch) -> None:
    def ask(self: agreed_stop.AgreedStop, number: int, reached: int) -> list[messages.Action]:
        self._inside = False
        return self._write(Word(COMMIT, number, ahead(reached, 1)))

    patch.setattr(agreed_stop.AgreedStop, "_ask", ask)


def _record_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    def propose(self: node.Node, record: records.CycleRecord) -> list[messages.Action]:
        self.proposed = record
        return [messages.Put(records.cycle_key(record.cycle), record.encode())]

    patch.setattr(node.Node, "propose", propose)


def _blind_spares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gathering, "_watch_members", lambda *args: [])


def _no_preference_for_a_signal(patch: pytest.MonkeyPatch) -> None:
    """A signal during a stop is forgotten."""
    original = stopping.on_stop

    def on(self: node.Node, phase: node.Stop, event: Any, now: float) -> list[messages.Action]:
        return [] if isinstance(event, messages.Signal) else original(self, phase, event, now)

    patch.setitem(controller.PHASES, node.Stop, (stopping.enter_stop, on))


def _lost_without_a_veto(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(liveness.LocalProgress, "patience", lambda self, limit: limit)


def _lease_is_never_taken_over(patch: pytest.MonkeyPatch) -> None:
    original = gathering._take_lease

    def take(self: node.Node, phase: node.Gather, now: float, *, old: str) -> list[messages.Action]:
        if old and records.decode(old).get("node") != self.name:
            return []
        return original(self, phase, now, old=old)

    patch.setattr(gathering, "_take_lease", take)


IN_A_RESTART, SPARES = ("in_a_restart",), ("flapping_spare", "launch", "replace")
MUTATIONS = (
    Mutation("a node leaves and says nothing", _leaves_in_silence),
    Mutation(
        "one broken connection ends a launcher", _one_broken_connection_ends_it, ("cut", "slow", "suspend")
    ),
    Mutation(
        "each launcher has its own restart budget", _budget_of_each_launcher, ("kill_rank", "two_failures")
    ),
    Mutation("heartbeats do not come from step", _wedged_launcher_looks_alive),
    Mutation(
        "an unknown field ends a launcher", _unknown_field_ends_a_launcher, ("other_version", "kill_rank")
    ),
    Mutation("evidence is taken twice", _evidence_twice),
    Mutation("a signal is lost while ranks are started", _signal_is_lost_in_start, IN_A_RESTART),
    Mutation("a signal is lost while ranks are stopped", _no_preference_for_a_signal, IN_A_RESTART),
    Mutation("calling off has no budget", _set(records, "CALL_OFF_BUDGET", 10**6), ("break_rank_store",)),
    Mutation(
        "a node that cannot start its ranks leaves the rest waiting", _no_word_of_failure, ("break_start",)
    ),
    Mutation("spares come before nodes that trained", _spares_before_those_that_trained, SPARES),
    Mutation("nodes that trained are not waited for", _no_wait_for_those_that_trained, SPARES),
    Mutation("ranks start before all nodes are ready", _begins_before_all_are_ready),
    Mutation("a cycle begins beside the last one", _next_cycle_beside_the_last),
    Mutation("a grace period counts suspended time", _grace_counts_suspended_time, IN_A_RESTART),
    Mutation("a rank that saves has no more time than others", _set(stopping, "SAVING", 0.0)),
    Mutation("a suspended launcher counts as lost", _lost_without_a_veto, ("suspend",)),
    Mutation("restarts to let nodes join are not limited", _set(records, "JOIN_INTERVAL", 0.0), SPARES),
    Mutation("the store's host does not leave last", _host_leaves_at_once),
    Mutation("the job ends when the first node is done", _end_when_the_first_is_done),
    Mutation("nodes leave with exit codes of their own", _own_exit_code),
    Mutation("a stop is committed before all said yes", _commits_without_all, ("sigterm", "sigterm_some")),
    Mutation("a cycle record is overwritten", _record_is_overwritten),
    Mutation(
        "spares do not notice that no member is left",
        _blind_spares,
        ("exclude", "massacre", "launch"),
    ),
    Mutation(
        "no other node takes over the choice of members",
        _lease_is_never_taken_over,
        ("massacre", "replace_twice"),
    ),
)
