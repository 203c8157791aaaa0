"""The node controller: `step` is the only function that changes a :class:`.node.Node`.

`step(node, event, now)` returns the actions that the driver carries out, in order. `next_deadline` is when it wants a
`Tick` at the latest; `watched_keys` are the keys of the store whose values it wants, with the seconds between two
reads. What an event means in every phase stands here; the rest is in the functions of the phases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from . import gathering, running, stopping
from . import messages as m
from .agreed_stop import quick_interval
from .liveness import BEAT
from .messages import NEVER, Action, Event
from .node import (
    SAVING,
    Confirm,
    Done,
    Drain,
    Gather,
    HostOnly,
    Leave,
    Node,
    Preempt,
    Run,
    Settings,
    Settle,
    Start,
    Stop,
    journal,
    log,
)
from .records import LAUNCHERS, CycleRecord, Kind, alive_key, encode

Handler = Callable[..., list[Action]]

PHASES: dict[type, tuple[Handler, Handler]] = {
    Gather: (gathering.enter_gather, gathering.on_gather),
    Confirm: (gathering.enter_confirm, gathering.on_confirm),
    Start: (running.enter_start, running.on_start),
    Run: (running.enter_run, running.on_run),
    Settle: (running.enter_settle, running.on_settle),
    Done: (running.enter_done, running.on_done),
    Stop: (stopping.enter_stop, stopping.on_stop),
    Preempt: (stopping.enter_preempt, stopping.on_preempt),
    Drain: (stopping.enter_drain, stopping.on_drain),
    HostOnly: (stopping.enter_host_only, stopping.on_host_only),
    Leave: (stopping.enter_leave, stopping.on_leave),
}
"""What happens on entering each phase, and for each event in it."""

RECORD = 0.1
"""Seconds between two reads of the next record while the ranks train; in jobs of more than 500 nodes, more."""


def begin(settings: Settings, now: float) -> tuple[Node, list[Action]]:
    """A node, and its first actions: it registers with the job and asks for a place."""
    node = Node(settings, phase=Gather(now), clock=(0.0, now))
    node.contact.answered = now
    actions = [*_beat(node, now), m.Append(LAUNCHERS, encode({"node": node.name}))]
    return node, [*actions, *_enter(node, now)]


def step(node: Node, event: Event, now: float) -> list[Action]:
    """Take one event; `now` is in monotonic seconds. Returns what is to be done, in order."""
    if isinstance(event, m.Suspended):
        node.suspended += event.seconds
        return []
    now -= node.suspended
    actions: list[Action] = []
    match event:
        case m.Tick():
            node.tick = event
            node.contact.answered = max(node.contact.answered, now - event.contact)
            actions += _beat(node, now)
        case m.StoreView(key, value):
            if key in node.contact.since and node.view.get(key) != value:
                node.contact.since[key] = now
            node.view[key] = value
        case m.EvidenceTaken():
            node.evidence_until = 0.0
    if isinstance(node.phase, Leave) and node.phase.exited:
        return []
    actions += _follow(node, now) or _without_host(node, event, now)
    if node.phase is node.entered:
        handler = PHASES[type(node.phase)][1]
        actions += handler(node, node.phase, event, now)
    return [*actions, *_enter(node, now)]


def _beat(node: Node, now: float) -> list[Action]:
    """The heartbeat to the other nodes: a launcher whose main loop is stuck sends none."""
    if now - node.beaten < BEAT or node.settings.is_alone:
        return []
    node.beaten = now
    node.beats += 1
    return [m.Put(alive_key(node.name), str(node.beats))]


def _enter(node: Node, now: float) -> list[Action]:
    """Enter the phases that the handlers have set, until one waits."""
    actions: list[Action] = []
    while node.phase is not node.entered:
        node.entered = node.phase
        node.contact.since.clear()
        actions += PHASES[type(node.phase)][0](node, node.phase, now)
        actions += _follow(node, now) if node.phase is node.entered else []
    return actions


def _follow(node: Node, now: float) -> list[Action]:
    """Act on the next cycle's record, once it stands, as the phase allows."""
    text, phase = node.view.get(node.next_key), node.phase
    waits = not isinstance(phase, Start | Preempt | Drain | Leave) and not (
        isinstance(phase, Stop) and phase.next
    )
    if not text or not waits:
        return []
    record = CycleRecord.decode(text, node.record.cycle + 1)
    if node.noted < record.cycle:
        node.noted, node.proposed = record.cycle, None
        node.gone.update(record.lost)
        node.clock = (max(record.at, node.job_time(now)), now)
    if isinstance(phase, Gather | Confirm):
        return stopping.move_on(node, record, now)
    if isinstance(phase, Run | Settle):
        running.follow(node, record, now)
    elif isinstance(phase, Done):
        if record.kind is Kind.END:
            wait = SAVING if record.exit_code == 0 else 0.0
            node.phase = Drain(now + wait, Leave(record.exit_code, record.reason, preempted=record.preempted))
        else:
            running.follow(node, record, now)
    elif isinstance(phase, Stop):
        phase.next = record
        phase.report = phase.report or record.is_trouble
    elif isinstance(phase, HostOnly):
        if record.kind is Kind.END:
            node.phase = Leave(phase.code, phase.reason)
        else:
            node.advance(record, now)
    return []


def _without_host(node: Node, event: Event, now: float) -> list[Action]:
    """The node that hosts the store is gone: stop the ranks and leave."""
    if node.settings.is_host or isinstance(node.phase, Start | Preempt | Drain | Leave):
        return []
    phase = node.phase
    if isinstance(phase, Stop) and not (phase.swept and phase.next is None and phase.leave is None):
        return []
    why = event.why if isinstance(event, m.StoreRefused) else ""
    if not why and isinstance(event, m.Tick):
        if node.contact.host_lost(running.progress(node, now), node.settings.node_timeout, now):
            why = f"it has not answered for {now - node.contact.answered:.0f} s"
    if not why:
        return []
    reason = (
        f"the node that hosts the rendezvous is gone ({why}). Start the job again; its ranks resume from their last "
        "checkpoint"
    )
    leave = Leave(1, reason, silent=True)
    node.phase = Stop(reason, leave=leave) if isinstance(phase, Run | Settle) else leave
    return [log(f"node {node.name} leaves the job: {reason}", logging.ERROR), journal("job_lost", reason=why)]


def next_deadline(node: Node) -> float | None:
    """When the controller wants a `Tick`, in monotonic seconds; None: it has ended."""
    phase = node.phase
    if isinstance(phase, Leave) and phase.exited:
        return None
    times = [node.beaten + BEAT if not node.settings.is_alone else node.contact.answered + BEAT]
    match phase:
        case Stop():
            times += stopping.stop_deadlines(node, phase).values()
            times += [node.evidence_until] if phase.term_at is None else []
        case Preempt():
            times += stopping.preempt_deadlines(node, phase).values()
            if phase.agreed is not None and phase.agreed.is_open:
                times.append(phase.since)  # as often as the driver can
        case Settle():
            times.append(phase.until)
        case Drain():
            times.append(phase.until)
        case Leave():
            times.append(phase.until)
    return min(times) + node.suspended


def watched_keys(node: Node) -> dict[str, float]:
    """The keys of the store whose values the controller wants, with the seconds between two reads.

    The number of reads in a second does not grow with the job: large jobs read less often, and the heartbeats of
    several nodes are read at once.
    """
    phase = node.phase
    quick = quick_interval(node.nodes)
    slow = RECORD * max(1.0, node.nodes / 500)
    keys: dict[str, Any] = {} if isinstance(phase, Leave) else {node.next_key: quick}
    match phase:
        case Gather():
            keys |= gathering.gather_keys(node, phase, quick)
            if phase.has_read or not phase.chooser:
                keys[node.next_key] = slow
        case Confirm():
            keys |= gathering.confirm_keys(node, phase, quick)
        case Run() | Settle():
            keys = {**keys, **running.run_keys(node), node.next_key: slow}
        case Done():
            keys = {**keys, **running.run_keys(node), **running.done_keys(node, quick)}
        case Preempt() if phase.agreed is not None:
            keys |= phase.agreed.keys(quick, node.view)
        case HostOnly() | Leave():
            keys |= stopping.leave_keys(node)
    return keys


__all__ = ["NEVER", "begin", "next_deadline", "step", "watched_keys"]
