"""How the ranks of a node are stopped and how the node leaves: STOP, PREEMPT, DRAIN, HOST_ONLY, LEAVE.

STOP ends a cycle: evidence where it is wanted, SIGTERM, each rank's grace period, SIGKILL, and the sweep of what the
ranks left behind. PREEMPT passes a signal on and gives the ranks the time to save. DRAIN lets what finished ranks left
running end by itself. LEAVE writes why this node leaves before it does; the host of the store leaves last.

What always holds: no cycle begins on a node before its ranks of the cycle before have ended, or even SIGKILL did not
end them; then the node leaves the job.
Does not cover: a node that ends without LEAVE (power, SIGKILL of the launcher): the others find it lost.
"""

from __future__ import annotations

import logging
import signal

from . import messages as m
from .agreed_stop import AgreedStop
from .messages import NEVER, Action, Event
from .node import (
    SAVING,
    Drain,
    Gather,
    HostOnly,
    Leave,
    Node,
    Preempt,
    Rank,
    Stop,
    code_of,
    journal,
    log,
    received,
)
from .records import FAILED, LAUNCHERS, LEFT, CycleRecord, Kind, alive_key, encode

EVIDENCE = 1.0
"""Seconds for evidence on ranks that may have caused what another node reports."""
UNINTERRUPTIBLE = 10.0
"""Seconds in state D, after SIGKILL, after which a node gives up on a process."""
WRITE = 3.0
"""Seconds for the last line of a node that leaves."""
LOG_AFTER = 5.0
"""Seconds in which ranks leave after Ctrl-C without a line about it."""


# -- ranks that end -------------------------------------------------------------------------------------------


def note_exit(node: Node, event: m.RankExited, now: float) -> Rank:
    """A rank has ended."""
    rank = node.ranks[event.local]
    rank.status, rank.stuck = event.status, False
    if not rank.failing:
        rank.cause, rank.text = event.cause, event.text
        rank.began = now if event.began is None else min(now, event.began)
    return rank


def kill_late(
    node: Node, deadlines: dict[int, float], began: float, now: float, *, hurry: bool
) -> list[Action]:
    """SIGKILL the ranks whose deadline has passed, and find those that outlive it."""
    actions: list[Action] = []
    for rank in node.running:
        if not rank.killed_by_us and (hurry or now >= deadlines.get(rank.local, NEVER)):
            rank.killed, rank.killed_by_us = rank.killed if rank.killed is not None else now, True
            actions.append(m.KillRank(rank.local, now - began))
        if rank.killed is None or rank.local not in node.tick.blocked:
            rank.blocked_since = None
        elif rank.blocked_since is None:
            rank.blocked_since = now
        rank.stuck = rank.blocked_since is not None and now - rank.blocked_since >= UNINTERRUPTIBLE
    return actions


# -- STOP -----------------------------------------------------------------------------------------------------


def enter_stop(node: Node, phase: Stop, now: float) -> list[Action]:
    """Capture evidence where another node reports trouble, then terminate the ranks."""
    actions: list[Action] = [
        m.EnterPhase("stopping", node.record.cycle),
        journal("stop", cycle=node.record.cycle, reason=phase.reason),
    ]
    if phase.take_evidence and not node.evidence and node.running:
        node.evidence, node.evidence_until = True, now + EVIDENCE
        actions.append(m.TakeEvidence("elsewhere", EVIDENCE))
    return [*actions, *_terminate(node, phase, now)]


def _terminate(node: Node, phase: Stop, now: float) -> list[Action]:
    """SIGTERM, once the evidence is taken."""
    if phase.term_at is not None or (now < node.evidence_until and node.running and not phase.hurry):
        return []
    phase.term_at = now
    if not node.running:
        return []
    return [
        m.SignalRanks(signal.SIGTERM),
        m.SignalRanks(signal.SIGCONT),
    ]  # a stopped rank would not get SIGTERM


def stop_deadlines(node: Node, phase: Stop) -> dict[int, float]:
    """When each rank gets SIGKILL."""
    if phase.term_at is None:
        return {}
    grace = node.settings.stop_timeout
    return {
        rank.local: phase.term_at + (max(grace, SAVING) if node.board(rank.local).saving else grace)
        for rank in node.running
        if not rank.killed_by_us
    }


def on_stop(node: Node, phase: Stop, event: Event, now: float) -> list[Action]:
    """One event until the ranks are gone and it is agreed what follows."""
    actions: list[Action] = []
    match event:
        case m.RankExited():
            note_exit(node, event, now)
        case m.Signal(number) if event.stops:
            phase.signal = phase.signal or number
            phase.hurry = phase.hurry or number == signal.SIGINT
        case m.Swept():
            phase.swept = True
            actions += [m.EnterPhase("idle", node.record.cycle)]
            if phase.report:
                reporter = phase.next.node if phase.next else node.name
                actions.append(m.Report(phase.reason, reporter, phase.lost))
    actions += _terminate(node, phase, now)
    if phase.term_at is not None:
        actions += kill_late(node, stop_deadlines(node, phase), phase.term_at, now, hurry=phase.hurry)
        if not node.running and not phase.sweeping:
            phase.sweeping = True
            actions.append(m.Sweep())
    if phase.swept:
        actions += _after_stop(node, phase, now)
    return actions


def _after_stop(node: Node, phase: Stop, now: float) -> list[Action]:
    """What follows, once it is agreed on."""
    actions: list[Action] = []
    if node.stuck or phase.signal:
        if phase.next is not None:
            node.advance(phase.next, now)
        if node.stuck:
            ranks = ", ".join(str(rank.number) for rank in node.stuck)
            reason = f"rank {ranks} did not end even by SIGKILL, so nothing can be started beside it"
            actions += leave(node, FAILED, f"node {node.name}: {reason}", now)
        else:
            leave_on_signal(node, phase.signal, now)
            actions += received(m.Signal(phase.signal))
    elif phase.leave is not None:
        node.phase = phase.leave
    elif phase.next is not None:
        actions += move_on(node, phase.next, now)
    return actions


def move_on(node: Node, record: CycleRecord, now: float) -> list[Action]:
    """No rank runs here: join the cycle of this record, or leave with the job's end."""
    code = record.exit_code
    if record.kind is Kind.END:
        if node.settings.is_alone and record.is_trouble:
            code = exit_code(
                [rank for rank in node.ranks.values() if rank.failed and not rank.obeyed(signal.SIGTERM)]
            )
            code = code or record.exit_code
        node.phase = Leave(code, record.reason, preempted=record.preempted)
        if code and record.node != node.name:
            text = f"the job ends with exit code {code}, node {record.node} says: {record.reason}"
            return [log(text, logging.ERROR)]
        return []
    settings, count = node.settings, node.settings.me.ranks
    spent = f" (restart {record.restarts} of {settings.max_restarts})" if record.kind is Kind.RESTART else ""
    why = f" because node {record.node} says: {record.reason}" if record.node != node.name else ""
    if record.kind is Kind.JOIN:
        why = f" because {record.reason}"
    began, trained = node.began, node.takes_part
    node.advance(record, now)
    node.phase = Gather(now)
    if not began:
        return [log(f"{record.reason}: the nodes gather again, no rank was started")] if trained else []
    values = {
        "restarts_used": record.restarts,
        "max_restarts": settings.max_restarts,
        "reason": record.reason,
    }
    return [
        log(f"restarting all {count} local ranks{spent}{why}"),
        journal("restart", cycle=record.cycle, **values),
    ]


def exit_code(failed: list[Rank]) -> int:
    """The failing ranks' own code where they agree, else 1. Ranks that only lost a peer do not count beside others."""
    causes = [rank for rank in failed if not rank.only_lost_peer] or failed
    codes = {128 - status if (status := rank.status or 0) < 0 else status for rank in causes}
    return (codes.pop() or FAILED) if len(codes) == 1 else FAILED


# -- PREEMPT --------------------------------------------------------------------------------------------------


def enter_preempt(node: Node, phase: Preempt, now: float) -> list[Action]:
    """Pass the signal on; agree with the other nodes on where all ranks stop, if ranks here take part in that."""
    phase.since, phase.deadline = now, now + node.settings.term_timeout
    if node.tick.stop_views and node.membership:
        phase.agreed = AgreedStop(node.record.cycle, node.name, node.membership.names, phase.number, now)
    return [
        *received(m.Signal(phase.number, phase.by)),
        m.EnterPhase("stopping", node.record.cycle),  # no verdicts any more: --term-timeout is the limit
        m.SignalRanks(phase.number, phase.deadline),
        m.SignalRanks(signal.SIGCONT),
    ]


def preempt_deadlines(node: Node, phase: Preempt) -> dict[int, float]:
    """When each rank gets SIGKILL. After a failure the others may wait for the dead rank in a collective."""
    late = phase.deadline if phase.failed_at is None else min(phase.deadline, phase.failed_at + SAVING)
    return {
        rank.local: phase.deadline if node.board(rank.local).saving else late
        for rank in node.running
        if not rank.killed_by_us
    }


def on_preempt(node: Node, phase: Preempt, event: Event, now: float) -> list[Action]:
    """One event until the ranks have left."""
    actions: list[Action] = []
    match event:
        case m.RankExited():
            rank = note_exit(node, event, now)
            if phase.failed_at is None and not rank.obeyed(phase.number):
                phase.failed_at = now
        case m.Signal(signal.SIGINT):
            phase.hurry = True
    actions += kill_late(node, preempt_deadlines(node, phase), phase.since, now, hurry=phase.hurry)
    if phase.agreed is not None:
        actions += phase.agreed.on(event, node.tick, node.view, node.contact, now)
    if node.running:
        return [*actions, *_log_slow(node, phase, now)]
    if phase.agreed is not None:
        actions += phase.agreed.close(now)
    failed = failed_by_themselves(node, phase.number)
    code = code_of(phase.number, node.settings.preempted_code)
    is_interrupt = phase.number == signal.SIGINT  # the user knows why the ranks ended, however they did
    if not is_interrupt and (failed or node.stuck):
        code = FAILED if node.stuck else exit_code(failed)
    is_clean = not failed and not node.stuck
    all_done = is_clean and not is_interrupt and all(rank.status == 0 for rank in node.ranks.values())
    wait = min(SAVING, node.settings.term_timeout) if all_done else 0.0
    agreed = phase.agreed is not None and phase.agreed.is_committed
    reason = f"node {node.name} was stopped by {signal.Signals(phase.number).name}"
    if text := node.view.get(node.next_key):
        node.advance(CycleRecord.decode(text, node.record.cycle + 1), now)
    record = None
    if node.settings.is_host or not agreed:
        record = node.without_me(reason, now, code=code, preempted=True)
    node.phase = Drain(now + wait, Leave(code, reason, record, preempted=True))
    return actions


def _log_slow(node: Node, phase: Preempt, now: float) -> list[Action]:
    """After Ctrl-C the user watches the terminal; a library may have swallowed a rank's KeyboardInterrupt."""
    if phase.number != signal.SIGINT or phase.logged or now - phase.since < LOG_AFTER:
        return []
    phase.logged = True
    ranks = ", ".join(str(rank.number) for rank in node.running[:8])
    left = phase.deadline - now
    when = f", or they are killed in {left:.0f} s (--term-timeout)" if left < NEVER else ""
    return [log(f"still there after SIGINT: rank {ranks}. Ctrl-C again ends them at once{when}")]


def failed_by_themselves(node: Node, number: int) -> list[Rank]:
    """The ranks that neither obeyed the signal nor only lost a peer, or their data-loader workers, to it."""
    failed = []
    for rank in node.ranks.values():
        if rank.stuck or (rank.obeyed(number) and not (rank.status and rank.failing)):
            continue
        if rank.verdict or rank.cause is m.Cause.OWN:
            if rank.obeyed(number):  # an exception was ending it when the signal did
                rank.status = FAILED
            failed.append(rank)
    return failed


# -- DRAIN, HOST_ONLY, LEAVE ----------------------------------------------------------------------------------


def enter_drain(node: Node, phase: Drain, now: float) -> list[Action]:
    """The ranks have ended."""
    return [m.WatchDescendants()] if phase.until > now else _sweep(phase)


def _sweep(phase: Drain) -> list[Action]:
    if phase.sweeping:
        return []
    phase.sweeping = True
    return [m.Sweep()]


def on_drain(node: Node, phase: Drain, event: Event, now: float) -> list[Action]:
    """One event until what the ranks left running has ended."""
    match event:
        case m.Swept():
            node.phase = phase.then
            return [m.EnterPhase("idle", node.record.cycle)]
        case m.DescendantsEnded():
            return _sweep(phase)
        case m.Signal() if event.stops:
            return _sweep(phase)
    return _sweep(phase) if now >= phase.until else []


def leave(node: Node, code: int, reason: str, now: float) -> list[Action]:
    """No rank runs here, and this node cannot take part: the others carry on without it, or the job ends."""
    record = node.without_me(reason, now, code=code)
    if record is not None and record.kind is Kind.LEAVE and node.settings.is_host:
        node.phase = HostOnly(code, reason, record)
    else:
        node.phase = Leave(code, reason, record)
    return [
        log(f"node {node.name} leaves the job: {reason}", logging.ERROR),
        journal("job_lost", reason=reason),
    ]


def leave_on_signal(node: Node, number: int, now: float) -> None:
    """No rank runs here, and this node was asked to stop."""
    code = code_of(number, node.settings.preempted_code)
    reason = f"node {node.name} was stopped by {signal.Signals(number).name}"
    node.phase = Leave(code, reason, node.without_me(reason, now, code=code, preempted=True), preempted=True)


def enter_host_only(node: Node, phase: HostOnly, now: float) -> list[Action]:
    """Stay for the store, without ranks."""
    node.began = False
    actions = [log(f"node {node.name} hosts the rendezvous and stays for it, without ranks")]
    return [*actions, *(node.propose(phase.record) if phase.record else [])]


def on_host_only(node: Node, phase: HostOnly, event: Event, now: float) -> list[Action]:
    """One event until the job has ended."""
    if isinstance(event, m.Signal) and event.stops:
        leave_on_signal(node, event.number, now)
        return received(event)
    if isinstance(event, m.Tick) and not has_company(node, now):
        node.phase = Leave(phase.code, "no other node is left")
        return [
            log(f"node {node.name}: no other node has shown any sign: there is no other node to host for")
        ]
    return []


def enter_leave(node: Node, phase: Leave, now: float) -> list[Action]:
    """Write what follows and why this node leaves, before it does."""
    end = journal("run_end", exit_code=phase.code, reason=phase.reason)
    if phase.silent:
        phase.exited = True
        return [end, m.Exit(phase.code)]
    phase.until = now + WRITE
    line = {"node": node.name, "why": phase.reason, "code": phase.code, "preempted": phase.preempted}
    return [end, *(node.propose(phase.record) if phase.record else []), m.Append(LEFT, encode(line))]


def on_leave(node: Node, phase: Leave, event: Event, now: float) -> list[Action]:
    """One event until the line is written, and on the store's host until the other nodes have left."""
    if isinstance(event, m.StoreRefused) or (isinstance(event, m.Written) and event.key == LEFT):
        phase.written = True
    phase.hurry = phase.hurry or (isinstance(event, m.Signal) and event.stops)
    is_over = phase.written or now >= phase.until
    if is_over and (phase.hurry or not (node.settings.is_host and has_company(node, now))):
        phase.exited = True
        return [m.Exit(phase.code)]
    return []


def has_company(node: Node, now: float) -> bool:
    """Whether another launcher of the job has not left and its heartbeat moves, as far as this node can see."""
    if node.settings.is_alone:
        return False
    if not node.view.get(LAUNCHERS):
        return True  # not read yet
    gone = {*node.view.log(LEFT), *node.gone, node.name}
    names = [name for name in node.view.log(LAUNCHERS) if name not in gone]
    limit = node.settings.node_timeout
    return min([limit, *(node.contact.still_for(alive_key(name), now) for name in names)]) < limit


def leave_keys(node: Node) -> dict[str, float]:
    """What the store's host watches while it stays for the others, with the seconds between two reads."""
    if not node.settings.is_host or node.settings.is_alone:
        return {}
    names = {*node.view.log(LAUNCHERS)} - {*node.view.log(LEFT), *node.gone, node.name}
    return {LAUNCHERS: 1.0, LEFT: 0.2, **dict.fromkeys(map(alive_key, names), 1.0)}
