"""How the ranks of a node are stopped and how the node leaves: STOP, PREEMPT, LEAVE.

STOP ends a cycle: evidence where it is wanted, SIGTERM, each rank's grace period, SIGKILL, and the sweep of what the
ranks left behind. PREEMPT passes a signal on and gives the ranks the time to save. LEAVE writes how the others continue
and why this node leaves; the host of the store stays until they have left.

What always holds: no cycle begins on a node before its ranks of the cycle before have ended. Where even SIGKILL does
not end one, the node leaves the job.
Does not cover: a launcher that ends without LEAVE (power, SIGKILL): the others find its node lost.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import replace

from ..exit_codes import FAILED, Outcome, of_stop
from . import messages as m
from .agreed_stop import AgreedStop
from .exiting import exit_code, failed_ranks, kill_late, record_exit
from .messages import NEVER, Action, Event, Log, journal
from .node import SAVING, Gather, Leave, Node, Preempt, Rank, Stop
from .records import LAUNCHERS, LEFT, CycleRecord, Kind, encode

EVIDENCE, LOOK = 1.0, 0.02
"""Seconds for evidence on ranks that may have caused what another node reports, and where the cause is known."""
REPORTS = 6.0
"""Seconds in which the nodes exchange evidence at the job's end."""
WRITE = 3.0
"""Seconds for the last records of a node that leaves."""
LOG_SLOW_AFTER = 5.0
"""Seconds in which ranks leave after a stop signal without a line about it."""


# -- STOP -----------------------------------------------------------------------------------------------------


def enter_stop(node: Node, phase: Stop, now: float) -> list[Action]:
    """Capture evidence where another node reports trouble; SIGTERM follows."""
    actions: list[Action] = [m.HoldVerdicts(), journal("stop", cycle=node.record.cycle, reason=phase.reason)]
    others = phase.next is not None and phase.next.is_trouble and phase.next.node != node.name
    lost_only = all(rank.only_lost_peer for rank in node.ranks.values() if rank.has_failed)
    if others and lost_only and node.running and node.evidence in ("", "crash"):
        is_explained = phase.next is not None and phase.next.is_explained
        trigger, seconds = ("crash", LOOK) if is_explained else ("elsewhere", EVIDENCE)
        if node.evidence != trigger:
            node.evidence, node.evidence_until = trigger, now + seconds
            actions.append(m.TakeEvidence(trigger, seconds))
    return actions


def stop_deadlines(node: Node, phase: Stop) -> dict[int, float]:
    """When each rank gets SIGKILL; the moment of SIGTERM before that was sent."""
    if phase.term_at is None:
        return dict.fromkeys((rank.local for rank in node.running), NEVER)
    grace = node.settings.stop_timeout
    deadlines = {}
    for rank in node.running:
        late = phase.term_at + (max(grace, SAVING) if node.board(rank.local).is_saving else grace)
        deadlines[rank.local] = phase.term_at if phase.kills_now else max(late, phase.deadline)
    return deadlines


def on_stop(node: Node, phase: Stop, event: Event, now: float) -> list[Action]:
    """One event until the ranks are gone and it is agreed what follows."""
    actions: list[Action] = []
    match event:
        case m.RankExited():
            record_exit(node, event, now)
        case m.Requested():
            node.request = event
        case m.Signal() if event.is_stop:
            actions += _signal_in_stop(node, phase, event, now)
        case m.Swept():
            phase.is_swept = True
    if phase.term_at is None and (now >= node.evidence_until or not node.running or phase.kills_now):
        phase.term_at = now
        actions += [m.SignalRanks(signal.SIGTERM)] if node.running and not phase.signal else []
    why = f"had not left within {node.settings.stop_timeout:g} s of SIGTERM (--workers-stop-timeout)"
    if phase.kills_now or phase.signal or (phase.term_at is not None and now - phase.term_at >= SAVING):
        why = "had not left after SIGTERM, and was no longer waited for"
    actions += kill_late(node, stop_deadlines(node, phase), phase.term_at or now, why, now)
    if phase.term_at is not None and not node.running and not phase.is_sweeping:
        phase.is_sweeping = True
        actions.append(m.Sweep(phase.linger))
    return [*actions, *_after_stop(node, phase, now)] if phase.is_swept else actions


def _signal_in_stop(node: Node, phase: Stop, event: m.Signal, now: float) -> list[Action]:
    """The ranks have received the signal already: they have the time that the signal gives them."""
    actions: list[Action] = []
    if not phase.signal and phase.leave is None:
        is_trouble = phase.has_failed or (phase.next is not None and phase.next.is_trouble)
        limit = min(node.settings.term_timeout, SAVING if is_trouble else NEVER)
        phase.signal, phase.deadline = event.number, now + limit
        actions = [*received(event), m.SignalRanks(event.number, limit)]
    if event.number == signal.SIGINT and not event.by:
        phase.kills_now = True
    return [*actions, m.Sweep()] if phase.is_sweeping and phase.linger else actions


def _after_stop(node: Node, phase: Stop, now: float) -> list[Action]:
    """What follows, once it is agreed on."""
    stuck = [rank for rank in node.ranks.values() if rank.is_stuck]
    ends = phase.next is not None and phase.next.kind is Kind.END
    if phase.leave is None and phase.next is None and not stuck and not phase.signal:
        return []  # the answer is under way
    actions: list[Action] = []
    began = NEVER if phase.term_at is None else phase.term_at
    failed = [rank for rank in failed_ranks(node) if rank.began < began or not _was_stopped(rank)]
    is_own = phase.has_failed and failed and node.settings.is_alone
    if (
        phase.next is not None
        and ends
        and is_own
        and not (phase.next.no_progress or phase.next.is_same_failure)
    ):
        phase.next = replace(phase.next, exit_code=exit_code(failed))  # a cause may have come out since
    if phase.has_failed or (phase.next is not None and phase.next.is_trouble):
        actions.append(m.Report(tuple(rank.local for rank in failed), phase.next))
        node.report_until = now + REPORTS if ends and node.nodes > 1 else 0.0
    leave = phase.leave
    if stuck and leave is None and not ends:
        ranks = ", ".join(str(rank.number) for rank in stuck)
        why = f"rank {ranks} did not end even by SIGKILL, so nothing can be started here"
        leave = Leave(Outcome.STUCK.code, why, "failed")
    elif phase.signal and leave is None and not ends:
        leave = leave_by_signal(node, phase.signal)
    if leave is not None:
        node.phase = leave
    elif phase.next is not None:
        actions += move_on(node, phase.next, now)
    return actions


def _was_stopped(rank: Rank) -> bool:
    """Whether it only obeyed SIGTERM, or did not in time."""
    return not rank.verdict and (rank.killed_at is not None or rank.obeyed(signal.SIGTERM))


def move_on(node: Node, record: CycleRecord, now: float) -> list[Action]:
    """No rank runs here: join the cycle of this record, or leave with the job's end."""
    if record.kind is Kind.END:
        reason, actions = record.reason, list[Action]()
        if record.exit_code and record.node != node.name:
            text = f"the job ends with exit code {record.exit_code}; reason from node {record.node}: {record.reason}"
            actions.append(Log(text, logging.ERROR))
        found = ""
        if record.no_progress:
            cycles = f"{record.stalled} failed cycles in a row" if record.stalled > 1 else "1 failed cycle"
            file = node.settings.iteration_file or f"the checkpoint_iteration_file of node {record.node}"
            found = f"no progress in {cycles}: {file} still has iteration {record.iteration}"
            what, option = "the cause of the failures", "max_no_progress_cycles"
        elif record.is_same_failure:
            times = f"{record.same_failures} times in a row" if record.same_failures > 1 else "once"
            found = f"the same failure {times}: {record.failure}"
            what, option = "the program or its data", "--ft-same-failure-limit"
        if found:
            then = f"repair {what} before it starts again, or raise {option}"
            reason = f"{found}. The job ends with exit code {record.exit_code}: {then}"
            actions.append(Log(reason, logging.ERROR))
        node.phase = Leave(record.exit_code, reason, is_preempted=record.preempted, is_agreed=True)
        return actions
    if node.request is not None:  # this node leaves, whichever record counts
        node.phase = leave_by_request(node, node.request)
        return []
    settings = node.settings
    spent = f" (restart {record.restarts} of {settings.max_restarts})" if record.kind is Kind.RESTART else ""
    if record.kind is Kind.RESTART and record.stalled and settings.most_stalled > 0:
        spent = f"{spent[:-1]}, failed cycle {record.stalled} of {settings.most_stalled} without progress)"
    why = f"; reason from node {record.node}: {record.reason}" if record.node != node.name else ""
    if record.kind is Kind.JOIN:
        why = f"; reason: {record.reason}"
    had_begun = node.has_begun
    node.advance(record, now)
    node.phase = Gather()
    if not had_begun:
        text = f"{record.reason}; retrying the rendezvous, no rank was started"
        return [Log(text)] if node.takes_part else []
    values = {
        "restarts_used": record.restarts,
        "max_restarts": settings.max_restarts,
        "reason": record.reason,
        **({"iteration": record.iteration, "stalled": record.stalled} if settings.iteration_file else {}),
    }
    return [
        Log(f"restarting all {settings.me.ranks} local ranks{spent}{why}"),
        journal("restart", cycle=record.cycle, **values),
    ]


# -- PREEMPT --------------------------------------------------------------------------------------------------


def enter_preempt(node: Node, phase: Preempt, now: float) -> list[Action]:
    """Pass the signal on. No verdicts any more: --term-timeout is the limit."""
    limit = node.settings.term_timeout
    phase.since, phase.deadline = now, now + limit
    if not all(rank.obeyed(phase.number) for rank in node.ranks.values()):
        phase.failed_at = now  # it failed a moment before the signal came
    asked = received(m.Signal(phase.number, phase.by))
    return [*asked, m.HoldVerdicts(), m.SignalRanks(phase.number, limit)]


def preempt_deadlines(node: Node, phase: Preempt) -> dict[int, float]:
    """When each rank gets SIGKILL. After a failure the others may wait for the dead rank in a collective."""
    late = phase.deadline if phase.failed_at is None else min(phase.deadline, phase.failed_at + SAVING)
    if phase.kills_now:
        return dict.fromkeys((rank.local for rank in node.running), phase.since)
    return {rank.local: phase.deadline if node.board(rank.local).is_saving else late for rank in node.running}


def on_preempt(node: Node, phase: Preempt, event: Event, now: float) -> list[Action]:
    """One event until the ranks have left. Meanwhile the nodes agree on where all ranks stop."""
    actions: list[Action] = []
    name = signal.Signals(phase.number).name
    match event:
        case m.RankExited():
            rank = record_exit(node, event, now)
            if phase.failed_at is None and not rank.obeyed(phase.number):
                phase.failed_at = now
        case m.Signal(signal.SIGINT, ""):
            phase.kills_now = True
        case m.Requested(action="shutdown_workload"):
            node.request = event
    if phase.agreed is None and node.tick.stop_views:
        phase.agreed = AgreedStop(phase.number, phase.since)
    limit = node.settings.term_timeout
    why = f"did not leave within --term-timeout {limit:g} s of {name}"
    if now < phase.deadline:
        why = f"had not left {now - phase.since:.1f} s after {name}, and was no longer waited for"
    actions += kill_late(node, preempt_deadlines(node, phase), phase.since, why, now)
    if phase.agreed is not None:
        actions += phase.agreed.on(node, event, now)
    if node.running:
        return [*actions, *_log_slow(node, phase, now)]
    if phase.agreed is not None:
        actions += phase.agreed.close(node)
    failed, lines = _after_signal(node, phase.number)
    node.phase = _after_preempt(node, phase, failed)
    return [*actions, *lines]


def _after_preempt(node: Node, phase: Preempt, failed: list[Rank]) -> Stop:
    """The ranks have left. What they left running has time to end where they all ended by themselves."""
    leave = leave_by_signal(node, phase.number)
    is_interrupt = phase.number == signal.SIGINT  # the user ended the ranks; how they did so does not matter
    is_stuck = any(rank.is_stuck for rank in node.ranks.values())
    if not is_interrupt and (failed or is_stuck):
        leave.code = Outcome.STUCK.code if is_stuck else exit_code(failed)
    text = node.view.get(node.next_key)
    record = CycleRecord.decode(text, node.record.cycle + 1) if text else None
    if record is not None and record.kind is Kind.END and record.exit_code and not record.preempted:
        leave = Leave(record.exit_code, record.reason, is_agreed=True)  # the job ended before
    elif node.request is not None:
        leave = leave_by_request(node, node.request)
    elif phase.agreed is not None and phase.agreed.is_committed and not node.settings.is_host:
        leave.departs = ""
    linger = 0.0
    if not failed and not is_interrupt and all(rank.status == 0 for rank in node.ranks.values()):
        linger = min(SAVING, node.settings.term_timeout)
    return Stop(leave.reason, leave=leave, linger=linger, has_failed=bool(failed) and not is_interrupt)


def _log_slow(node: Node, phase: Preempt, now: float) -> list[Action]:
    """Once: which ranks are waited for. They save, or a library has swallowed the signal."""
    if phase.has_logged or now - phase.since < LOG_SLOW_AFTER:
        return []
    phase.has_logged = True
    ranks = ", ".join(str(rank.number) for rank in node.running[:8])
    left = phase.deadline - now
    when = f", or they are killed in {left:.0f} s (--term-timeout)" if left < NEVER else ""
    key = "Ctrl-C again" if phase.number == signal.SIGINT else "Ctrl-C (SIGINT to this launcher)"
    name = signal.Signals(phase.number).name
    return [Log(f"still there after {name}: rank {ranks}. {key} ends them at once{when}")]


def _after_signal(node: Node, number: int) -> tuple[list[Rank], list[Action]]:
    """The ranks that failed by themselves; and lines on those that only lost a peer, or their data-loader workers, to
    the signal."""
    failed: list[Rank] = []
    actions: list[Action] = []
    # gloo may miss that a peer is gone, and NCCL does: who waits for it then ends by torch's timeout.
    has_lost = node.nodes > 1 or any(rank.obeyed(number) for rank in node.ranks.values())
    own = (m.Cause.OWN,) if has_lost else (m.Cause.OWN, m.Cause.TIMED_OUT)
    for rank in node.ranks.values():
        if rank.is_stuck or rank.obeyed(number):
            continue
        if rank.verdict or rank.cause in own:
            if rank.exit_code == 128 + number:  # an exception was ending it when the signal did
                rank.status = FAILED
            failed.append(rank)
        else:
            lost_worker = rank.cause is m.Cause.LOST_WORKER
            who = "its data-loader workers" if lost_worker else "a rank that it was connected to"
            text = f"rank {rank.number}: {who} ended by {signal.Signals(number).name}: {rank.text}"
            actions.append(Log(text))
    return failed, actions


# -- LEAVE ----------------------------------------------------------------------------------------------------


def received(event: m.Signal) -> list[Action]:
    """Log and record a signal that asks the job to stop."""
    name = signal.Signals(event.number).name
    if event.by:
        text = f"{event.by} received a stop signal ({name}): stopping all ranks"
        return [Log(text), journal("preemption", signal=name, by=event.by)]
    text = f"Received Signals.{name} death signal, shutting down workers"
    return [Log(text), journal("preemption", signal=name)]


def leave_by_request(node: Node, request: m.Requested) -> Leave:
    """A rank requested it, and no rank runs here."""
    why = f"rank {request.rank} (node {node.name}) requested it: {request.description}"
    if request.action == "shutdown_workload":
        return Leave(Outcome.SHUT_DOWN.code, why, "shutdown")
    if node.nodes - 1 + node.waiting < node.settings.least:
        left = f"{node.nodes - 1} of {node.settings.nnodes}"
        return Leave(Outcome.EXCLUDED_LAST.code, f"{why}. Too few nodes are left: {left}", "excluded")
    return Leave(Outcome.EXCLUDED.code, why, "excluded")


def leave_by_signal(node: Node, number: int, *, others_need_record: bool = True) -> Leave:
    """This node received a stop signal, and no rank runs here. The job ends with the store's host."""
    code = of_stop(signal.Signals(number), node.settings.preempted_code)
    departs = "preempted" if others_need_record else ""
    return Leave(code, f"stopped by {signal.Signals(number).name}", departs, is_preempted=True)


def enter_leave(node: Node, phase: Leave, now: float) -> list[Action]:
    """Write why this node leaves, before it does."""
    phase.until = now + WRITE
    end = journal("run_end", exit_code=phase.code, reason=phase.reason)
    if phase.is_silent:
        phase.has_ended = True
        return [end, m.Exit(phase.code, 0.0)]
    if phase.departs != "failed":
        return [end]
    text = f"node {node.name} leaves the job: {phase.reason}"
    return [end, Log(text, logging.ERROR), journal("job_lost", reason=phase.reason, host="")]


def on_leave(node: Node, phase: Leave, event: Event, now: float) -> list[Action]:
    """One event until the others can continue without this node; on the store's host, until they have left."""
    if isinstance(event, m.Signal) and event.is_stop:
        if phase.kills_now or phase.is_agreed or not node.settings.is_host or phase.departs == "preempted":
            return _exit(node, phase)
        phase.kills_now, phase.departs = True, "preempted"  # the job ends with its store
        phase.code = leave_by_signal(node, event.number).code
        return received(event)
    if now < node.report_until and phase.is_agreed:
        return []
    if not phase.is_written:
        return [*_write(node, phase), *on_leave(node, phase, node.tick, now)]
    text = node.watch(node.next_key)
    record = node.departure(phase, now)
    actions = _log_hosting(node, phase)
    if record is not None and text:
        counts = CycleRecord.decode(text, node.record.cycle + 1)
        if counts.kind is Kind.END or record.kind is not Kind.END:
            phase.departs = ""  # the line in `left` is enough, but the job's end has to be in a record
        node.advance(counts, now)
        return [*actions, *on_leave(node, phase, node.tick, now)]
    if record is not None and (node.settings.is_host or now < phase.until):
        return [*actions, *node.propose(record)]
    if node.tick.refused or not node.settings.is_host or not has_other_launchers(node, now):
        return [*actions, *_exit(node, phase)]
    return actions


def _log_hosting(node: Node, phase: Leave) -> list[Action]:
    """Once: the store's host was excluded, and the other nodes continue."""
    if phase.departs != "excluded" or not node.settings.is_host or phase.has_logged or node.nodes == 1:
        return []
    phase.has_logged = True
    return [Log(f"node {node.name} continues to host the rendezvous, without ranks")]


def _exit(node: Node, phase: Leave) -> list[Action]:
    phase.has_ended = True
    last = [] if phase.is_written else _write(node, phase)
    if phase.has_logged and node.record.kind is not Kind.END:
        last.append(Log(f"node {node.name}: no other node is left, so it no longer hosts the rendezvous"))
    return [*last, m.Exit(phase.code)]


def _write(node: Node, phase: Leave) -> list[Action]:
    """Why this node leaves, for the other nodes."""
    phase.is_written = True
    line = {"node": node.name, "why": phase.reason, "code": phase.code, "preempted": phase.is_preempted}
    return [m.Append(LEFT, encode(line))]


def has_other_launchers(node: Node, now: float) -> bool:
    """Whether another launcher of the job has not left and its heartbeat moves, as far as this node can see."""
    if node.settings.is_alone:
        return False
    if not node.watch(LAUNCHERS, 1.0):
        return True  # not read yet
    names = [name for name in node.view.log(LAUNCHERS) if name != node.name]
    return any(not lost for lost in [node.is_lost(name, node.settings.node_timeout, now) for name in names])
