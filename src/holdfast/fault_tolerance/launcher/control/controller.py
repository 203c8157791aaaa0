"""The node controller: `step` is the only function that changes a :class:`.node.Node`.

`step(node, event, now)` returns the actions that the driver carries out, in order. `next_deadline` is when it wants a
`Tick` at the latest. `watched_keys` are the keys of the store whose values it wants. What an event means in every phase
is here; the functions of the phases have the rest.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping

from ..exit_codes import Outcome
from . import exiting, gathering, running, stopping
from . import messages as m
from .messages import Action, Event, Log, journal
from .node import BEAT, SAVING, Confirm, Done, Gather, Leave, Node, Preempt, Run, Settle, Start, Stop
from .records import HOST, LAUNCHERS, CycleRecord, Kind, Settings, encode, key

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
    Leave: (stopping.enter_leave, stopping.on_leave),
}
"""What happens on entering each phase, and for each event in it."""


def begin(settings: Settings, now: float) -> tuple[Node, list[Action]]:
    """A node, and its first actions: it registers with the job."""
    node = Node(settings, clock=(0.0, now), now=now)
    node.contact.answered = now
    names = {"node": node.name, "nnodes": settings.nnodes}
    host: list[Action] = [m.Put(HOST, encode(names))] if settings.is_host else []
    return node, [*_beat(node), m.Append(LAUNCHERS, encode({"node": node.name})), *host, *_enter(node)]


def step(node: Node, event: Event, now: float) -> list[Action]:
    """Take one event; `now` is in seconds of the driver's clock. Returns what is to be done, in order."""
    node.now = now
    actions: list[Action] = []
    match event:
        case m.Tick():
            node.tick, node.ticked_at = event, now
            node.contact.answered = max(node.contact.answered, now - event.contact)
            if isinstance(node.phase, Run | Settle):
                node.progress.update(event.boards, event.cpu, now)
            actions += _beat(node)
        case m.StoreView(name, value):
            if node.view.get(name, value) != value:
                node.contact.moved(name, now)
            node.view[name] = value
        case m.EvidenceTaken(cycle, trigger):
            if (cycle, trigger) == (node.record.cycle, node.evidence):
                node.evidence_until = 0.0
        case m.Reported(cycle):
            if cycle == node.record.cycle:
                node.report_until = 0.0
        case m.Suspected():
            node.is_suspect = True
        case m.Health(cycle, sick, is_own):
            if cycle == node.record.cycle:
                may_leave = bool(sick) and is_own and node.settings.exclude_sick
                if may_leave and not node.may_leave and node.settings.is_alone:
                    actions.append(
                        Log("the job has no other node: it continues on this one, although it is sick")
                    )
                node.health, node.may_leave = sick, may_leave
        case m.IterationRead(cycle, number):
            if cycle == node.record.cycle:
                node.take_iteration(number, now)
        case m.LauncherFailed(why):
            node.ranks = {}
            node.phase = Leave(Outcome.LAUNCHER_FAILED.code, f"the launcher itself failed: {why}", "failed")
    if isinstance(node.phase, Leave) and node.phase.has_ended:
        return []
    if isinstance(event, m.Signal) and event.is_stop:
        actions += _stop(node, event)
    actions += _follow(node) or _without_host(node)
    if node.phase is node.entered:
        actions += PHASES[type(node.phase)][1](node, node.phase, event, now)
    return [*actions, *_enter(node)]


def _stop(node: Node, event: m.Signal) -> list[Action]:
    """A stop signal. Where ranks start, or have to end already, or the node leaves, the phase has its own answer."""
    if isinstance(node.phase, Run | Settle):
        node.phase = Preempt(event.number, event.by)
    elif isinstance(node.phase, Gather | Confirm | Done):
        node.phase = stopping.leave_by_signal(node, event.number, others_need_record=node.settings.is_host)
        return stopping.received(event)
    return []


def _beat(node: Node) -> list[Action]:
    """The heartbeat to the other nodes: a launcher whose main loop is stuck sends none."""
    if node.now - node.beaten < BEAT or node.settings.is_alone:
        return []
    node.beaten = node.now
    node.beats += 1
    return [m.Put(key("alive", node.name), str(node.beats))]


def _enter(node: Node) -> list[Action]:
    """Enter the phases that the handlers have set, until one waits. It takes the newest tick as its first event."""
    actions: list[Action] = []
    while node.phase is not node.entered:
        node.entered = node.phase
        node.watched.clear()
        node.contact.clear()
        enter, on = PHASES[type(node.phase)]
        actions += enter(node, node.phase, node.now)
        if node.phase is node.entered:
            actions += _follow(node)
        if node.phase is node.entered and not (isinstance(node.phase, Leave) and node.phase.has_ended):
            actions += on(node, node.phase, node.tick, node.now)
    return actions


def _follow(node: Node) -> list[Action]:
    """Act on the next cycle's record, as the phase allows."""
    phase = node.phase
    if isinstance(phase, Start | Preempt | Leave):
        return []
    if isinstance(phase, Stop) and (phase.next is not None or phase.leave is not None):
        node.watched.pop(node.next_key, None)
        return []
    is_slow = isinstance(phase, Run | Done) or (isinstance(phase, Gather) and phase.is_spare)
    text = node.watch(node.next_key, node.slow if is_slow else 0.0)
    if not text:
        return []
    record = CycleRecord.decode(text, node.record.cycle + 1)
    if isinstance(phase, Stop):
        phase.next = record
    elif isinstance(phase, Gather | Confirm):
        return stopping.move_on(node, record, node.now)
    elif record.preempted and isinstance(phase, Run | Settle):
        node.phase = Preempt(signal.SIGTERM, f"node {record.node}")
    else:  # the ranks run or are done
        has_succeeded = isinstance(phase, Done) and record.kind is Kind.END and record.exit_code == 0
        linger, has_failed = SAVING if has_succeeded else 0.0, isinstance(phase, Settle)
        node.phase = Stop(record.reason, next=record, linger=linger, has_failed=has_failed)
    return []


def _without_host(node: Node) -> list[Action]:
    """The node that hosts the store is gone: stop the ranks and leave."""
    phase = node.phase
    if node.settings.is_host or isinstance(phase, Start | Preempt | Leave):
        return []
    if isinstance(phase, Stop) and not (phase.is_swept and phase.next is None and phase.leave is None):
        return []
    why = node.tick.refused
    if not why and node.contact.host_lost(running.silence_limit(node), node.now):
        why = f"{node.settings.store} has not answered for {node.now - node.contact.answered:.0f} s"
    if not why:
        return []
    reason = (
        f"the node that hosts the rendezvous is gone ({why}). Start the job again; its ranks resume from their last "
        "checkpoint"
    )
    leave = Leave(Outcome.HOST_LOST.code, reason, is_silent=True)
    node.phase = Stop(reason, leave=leave) if isinstance(phase, Run | Settle) else leave
    text = f"node {node.name} leaves the job: {reason}"
    return [Log(text, logging.ERROR), journal("job_lost", reason=why, host=node.settings.store)]


def next_deadline(node: Node) -> float | None:
    """When the controller wants a `Tick`, in seconds of the driver's clock; None: it has ended."""
    phase = node.phase
    times = [node.beaten + BEAT, node.now + BEAT, node.read_until or 0.0]
    match phase:
        case Leave():
            times += [phase.until, node.report_until]
            if phase.has_ended:
                return None
        case Stop():
            times += [node.evidence_until, *stopping.stop_deadlines(node, phase).values()]
        case Preempt():
            times += stopping.preempt_deadlines(node, phase).values()
            if phase.agreed is not None and not phase.agreed.is_closed and phase.agreed.look_at <= node.now:
                return node.now  # an event came when the pages were to be read
            times += [phase.agreed.look_at] if phase.agreed is not None else []
        case Run():
            times += [exiting.ends_at(node, rank) for rank in node.running]
        case Settle():
            times.append(phase.until)
    return min(at for at in times if at > node.now)


def watched_keys(node: Node) -> Mapping[str, float]:
    """The keys of the store whose values the controller wants, with the seconds between two reads.

    The number of reads in a second does not grow with the job: large jobs read less often, and the heartbeats of
    several nodes are read at once.
    """
    return node.watched
