"""A cycle from its start to what ends it: START, RUN, SETTLE, DONE.

RUN watches the local ranks, the next node in the ring, the nodes that wait for a place, and the store's host. SETTLE
follows a failure: for at most a second the cause may still come, for a quarter of a second a signal to all processes.
What follows is proposed as the next cycle's record. A healthy rank is never stopped because the store does not answer
while the ranks make progress.

Does not cover: detection of hangs (the monitor), and signals other than SIGUSR1/2 that a script uses for its own ends.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace

from holdfast.incidents.suspicions import FORGIVEN_AFTER

from ...stop.rules import LATE
from ..exit_codes import Outcome
from . import agreed_stop
from . import messages as m
from .exiting import exit_code, failed_ranks, record_description, record_exit, watch_exits
from .gathering import changed_members, place
from .messages import PASSED_ON, Action, Event, Log, journal
from .node import BUSY, READING, Done, Leave, LocalProgress, Node, Preempt, Rank, Run, Settle, Start, Stop
from .records import LEFT, Kind, Member, decode, encode, key, whole_number
from .stopping import leave_by_request

CAUSE = 1.0
"""Seconds in which a process whose connections are closed has usually ended, a GPU aside."""
SAME_MOMENT = 0.25
"""Seconds in which a signal that was sent to all processes has reached them all."""
EVIDENCE = 0.02
"""Seconds for evidence after a crash."""
NEWCOMERS = 64
"""Nodes that wait for a place, of which node 0 and a sick node watch the heartbeats."""
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *PASSED_ON}


# -- START ----------------------------------------------------------------------------------------------------


def enter_start(node: Node, phase: Start, now: float) -> list[Action]:
    """All members are ready: start the ranks."""
    members, cycle = node.membership, node.record.cycle
    first = members.first_rank(node.name)
    node.ranks = {local: Rank(local, first + local) for local in range(node.settings.me.ranks)}
    node.progress, node.newcomers, node.has_begun = LocalProgress(), 0, True
    node.evidence_until = 0.0
    node.tick = replace(node.tick, boards={})  # of the cycle before
    begins = {
        "world_size": members.world_size,
        "node_rank": members.index(node.name),
        "leader": members.leader,
    }
    return [
        *changed_members(node),
        journal("cycle_start", cycle=cycle, **begins),
        m.StartRanks(cycle, members, phase.address, phase.port),
    ]


def on_start(node: Node, phase: Start, event: Event, now: float) -> list[Action]:
    """The ranks have started, or could not be."""
    match event:
        case m.Signal() if event.is_stop:
            node.pending = event
        case m.Requested():
            node.request = event
        case m.RankExited():
            record_exit(node, event, now)
        case m.Verdict() | m.RankFailing():
            record_report(node, event, now)
        case m.Started(failure="", pids=pids):
            for local, pid in pids.items():
                node.ranks[local].pid = pid
            node.phase = Run()
        case m.Started(failure):
            node.ranks, why = {}, f"its ranks could not be started: {failure}"
            node.phase = Leave(Outcome.NOT_STARTED.code, why, "failed")
    return []


# -- RUN ------------------------------------------------------------------------------------------------------


def enter_run(node: Node, phase: Run, now: float) -> list[Action]:
    """The ranks run; a signal that came while they were started counts now."""
    pending, node.pending = node.pending, None
    if pending is not None:
        node.phase = Preempt(pending.number, pending.by)
    elif node.request is not None:
        return on_request(node, node.request, now)
    elif any(rank.has_failed for rank in node.ranks.values()):
        node.phase = Settle()
    elif not node.running:
        node.phase = Done()
    return []


def on_run(node: Node, phase: Run, event: Event, now: float) -> list[Action]:
    """One event while the ranks train."""
    match event:
        case m.RankExited(status=status):
            rank = record_exit(node, event, now)
            if rank.has_failed and -status in phase.passed_on and not rank.verdict:
                node.phase = Preempt(-status)
            elif rank.has_failed:
                node.phase = Settle()
            elif not node.running:
                node.phase = Done()
        case m.Verdict():
            record_report(node, event, now)
            node.phase = Settle()
        case m.RankFailing():
            record_report(node, event, now)
        case m.ExitDescribed():
            return [*record_description(node, event, now), *watch_exits(node, now)]
        case m.Requested():
            return on_request(node, event, now)
        case m.Signal(number):
            phase.passed_on.add(number)
            return [m.SignalRanks(number)]
        case _:
            return _watch(node, phase, now)
    return []


def record_report(node: Node, event: m.Verdict | m.RankFailing, now: float) -> None:
    """The monitor, or a rank's last exception, has more on a rank that runs."""
    rank = node.ranks[event.local]
    if isinstance(event, m.Verdict):
        rank.verdict, node.evidence = event.text, "monitor"
        rank.text, rank.began = (rank.text, rank.began) if rank.has_raised else (event.text, now)
    else:
        rank.has_raised, rank.cause, rank.text, rank.began = True, event.cause, event.text, now - event.ago
        rank.failure = event.failure


def on_request(node: Node, event: m.Requested, now: float) -> list[Action]:
    """A rank requested the end of the job, or that its node leaves it. It holds until a record fulfils it."""
    node.request = event
    leave = leave_by_request(node, event)
    record = node.departure(leave, now)
    actions: list[Action] = [Log(f"shutting the whole job down: {leave.reason}")]
    if leave.departs != "shutdown":
        text = f"node {node.name} leaves the job: {leave.reason}"
        actions = [Log(text), journal("node_excluded", reason=leave.reason)]
    return [*actions, *(node.propose(record) if record else [])]


def _watch(node: Node, phase: Run, now: float) -> list[Action]:
    """Other nodes, and the store of the ranks."""
    if why := node.tick.rank_store:
        return restart(node, why, now, [Log(why, logging.ERROR)]) if not node.has_proposed else []
    return [
        *watch_exits(node, now),
        *watch_neighbour(node, now, "are making no progress"),
        *_watch_newcomers(node, now),
        *_watch_health(node, now),
        *watch_stop(node, phase, now),
    ]


def silence_limit(node: Node) -> float:
    """For how many seconds another node, or the store's host, may be silent: the local ranks are a veto."""
    limit = node.settings.node_timeout
    return node.progress.patience(limit) if isinstance(node.phase, Run | Settle) else BUSY * limit


def watch_neighbour(node: Node, now: float, local_ranks: str) -> list[Action]:
    """Restart without the next node in the ring when it is lost."""
    name = node.membership.neighbour(node.name)
    if not name or not node.is_lost(name, silence_limit(node), now) or node.has_proposed:
        return []
    if name in node.view.log(LEFT):
        return node.propose(node.without(name, now))
    waited = node.contact.stalled_for(key("alive", name), now)
    why = f"node {name} is gone: no sign of it for {waited:.1f} s, and the local ranks {local_ranks}"
    found: list[Action] = [Log(f"NODE LOST: {why}"), journal("node_lost", lost=name, waited=round(waited, 3))]
    return restart(node, why, now, found, lost=(name,))


def restart(
    node: Node, why: str, now: float, found: list[Action], *, lost: tuple[str, ...] = ()
) -> list[Action]:
    """Propose a restart if one is left, else the job's end, for another reason than failed ranks.

    Args:
        found: Reports what was found, once the iteration of the last checkpoint is read.
    """
    if node.is_reading(now):
        return []
    is_old = node.read_until is None or now - node.read_until >= READING
    if is_old and (reads := node.read_iteration(now)):
        return reads
    settings, record = node.settings, node.ending(now).restart(why, lost=lost)
    actions = found
    if record.kind is Kind.END and not record.no_progress and not node.has_proposed:
        used = f"{record.restarts} of {settings.max_restarts} used"
        actions = [*found, Log(f"no restart left ({used}): the job ends", logging.ERROR)]
    return [*actions, *node.propose(record)]


def _watch_newcomers(node: Node, now: float) -> list[Action]:
    """On node 0: count the nodes that wait for a place, and let them in when there is room."""
    if node.settings.is_alone:
        return []
    if not node.is_leader:
        node.watch(node.key("waiting"), 1.0)
        return []
    names = _newcomers(node, now)
    alive = len(_moving(node, names))
    actions: list[Action] = []
    if alive != node.newcomers:
        node.newcomers = alive
        node.view[node.key("waiting")] = str(alive)
        actions.append(m.Put(node.key("waiting"), str(alive)))
    if not alive or node.nodes >= node.settings.most:
        return actions
    more = _would_train(node, node.membership.members, names, now) - node.nodes
    if more < 1:
        return actions
    return [*actions, *_form_anew(node, f"{more} more node{'s' if more > 1 else ''} came to join", now)]


def _newcomers(node: Node, now: float) -> list[str]:
    """The nodes that wait for a place, without those that are lost."""
    node.watch(node.key("join"), 1.0)
    gone = {*node.membership.names, *node.view.log(LEFT)}
    names = [name for name in node.view.log(node.key("join")) if name not in gone][-NEWCOMERS:]
    return [name for name in names if not node.is_lost(name, node.settings.node_timeout, now)]


def _moving(node: Node, names: list[str]) -> list[str]:
    """Those of the nodes whose heartbeats were seen to move."""
    return [name for name in names if key("alive", name) in node.contact.has_moved]


def _would_train(node: Node, members: Sequence[Member], newcomers: list[str], now: float) -> int:
    """How many of these members and newcomers a new membership would have."""
    lines, settings = node.view.log(node.key("join")), node.settings
    able = [*members, *(Member.decode(lines[name]) for name in newcomers if _may_join(node, name, now))]
    if settings.segment == 1:
        return min(len(able), settings.most)
    return len(place(able, node.membership, settings.most, segment=settings.segment))


def _may_join(node: Node, name: str, now: float) -> bool:
    """Whether a restart would let this node in where there is room."""
    line, left_out = node.view.log(node.key("join"))[name], node.membership.left_out
    is_old = node.job_time(now) - node.record.at >= FORGIVEN_AFTER
    is_suspect = name in left_out or str(line.get("domain", "")) in left_out
    return not line.get("may_leave") and (is_old or not (is_suspect and node.settings.exclude_suspects))


def _watch_health(node: Node, now: float) -> list[Action]:
    """This node was found sick after the membership was formed: the others may be able to continue without it."""
    if not node.may_leave or dict(node.membership.unfit).get(node.name):
        return []
    others = [member for member in node.membership.members if member.node != node.name]
    newcomers = _moving(node, _newcomers(node, now))
    if _would_train(node, others, newcomers, now) < node.settings.least:
        return []
    return _form_anew(node, f"node {node.name} is sick: {node.health}", now)


def _form_anew(node: Node, reason: str, now: float) -> list[Action]:
    record = None if node.has_proposed else node.ending(now).join(reason)
    return node.propose(record) if record else []


def watch_stop(node: Node, phase: Run | Done, now: float) -> list[Action]:
    """Another node received a stop signal: the ranks here stop too if they take part in that."""
    if node.nodes == 1:
        return []
    wanted = decode(node.watch(node.key("stop"), 1.0))
    if not wanted or not node.tick.stop_views:
        return []
    phase.stop_seen = now if phase.stop_seen is None else phase.stop_seen
    if isinstance(phase, Run) and agreed_stop.has_participants(node):
        number = whole_number(wanted, "signal")
        is_signal = number in {int(each) for each in signal.Signals}
        node.phase = Preempt(number if is_signal else signal.SIGTERM, f"node {wanted.get('node')}")
        return []
    if isinstance(phase, Done) or now - phase.stop_seen >= LATE:
        return agreed_stop.decline(node)
    return []


# -- SETTLE ---------------------------------------------------------------------------------------------------


def enter_settle(node: Node, phase: Settle, now: float) -> list[Action]:
    """A rank has failed."""
    failed = failed_ranks(node)
    phase.for_signal = now + SAME_MOMENT if _may_be_signalled(failed) else 0.0
    phase.for_cause = now + CAUSE
    actions = node.read_iteration(now)
    if node.evidence:
        return actions
    node.evidence, node.evidence_until = "crash", now + EVIDENCE
    return [*actions, m.TakeEvidence("crash", EVIDENCE, failed[0].number)]


def on_settle(node: Node, phase: Settle, event: Event, now: float) -> list[Action]:
    """One event until it is clear why the ranks have failed; then a restart is proposed, and the ranks are stopped."""
    match event:
        case m.RankExited():
            record_exit(node, event, now)
        case m.Verdict() | m.RankFailing():
            record_report(node, event, now)
        case m.Requested():
            return on_request(node, event, now)
        case m.Signal(number) if any(rank.exit_code == 128 + number for rank in failed_ranks(node)):
            node.phase = Preempt(number, event.by)  # SIGUSR1, of which the ranks die
            return []
    failed = failed_ranks(node)
    if now < phase.for_signal or (now < phase.for_cause and _lacks_cause(node, failed)):
        phase.until = phase.for_signal if now < phase.for_signal else phase.for_cause
        return []
    if node.is_reading(now):
        return []
    found = failed[0]
    lost = ". No rank of this node had failed before" if found.only_lost_peer else ""
    reason = f"rank {found.number} (node {node.name}, pid {found.pid}): {found.text}{lost}"
    ended = [rank for rank in failed if not rank.is_running] or failed
    # What these ranks lost is no rank of this node: a whole node may be gone.
    gather = found.only_lost_peer and node.nodes > 1
    failure = None if gather else "" if found.verdict else found.failure
    record = node.ending(now).restart(reason, exit_code=exit_code(ended), gather=gather, failure=failure)
    if record.kind is Kind.END and not node.settings.is_alone and now < node.evidence_until:
        phase.until = node.evidence_until  # a rank that fails at the same moment counts for the exit code
        return []
    node.phase = Stop(reason, has_failed=True)
    return node.propose(
        replace(record, is_explained=found.cause in (m.Cause.OWN, m.Cause.TIMED_OUT) and not found.verdict)
    )


def _lacks_cause(node: Node, failed: list[Rank]) -> bool:
    """Whether all have only lost a peer so far, and a rank still runs that may have failed first."""
    running = {rank.local for rank in node.running}
    return bool(running) and all(
        rank.only_lost_peer or (rank.verdict and rank.local in running) for rank in failed
    )


def _may_be_signalled(failed: list[Rank]) -> bool:
    """Whether one died of a signal that stops jobs, or its data loader did, and the rest may only follow from that."""
    died = [not rank.verdict and rank.exit_code - 128 in STOPPING for rank in failed]
    follows = [not rank.verdict and rank.cause is not m.Cause.OWN for rank in failed]
    lost_worker = any(rank.cause is m.Cause.LOST_WORKER for rank in failed)
    return all(map(max, died, follows)) and (any(died) or lost_worker)


# -- DONE -----------------------------------------------------------------------------------------------------


def enter_done(node: Node, phase: Done, now: float) -> list[Action]:
    """The local ranks are done."""
    return [m.Append(node.key("done"), encode({"node": node.name}))]


def on_done(node: Node, phase: Done, event: Event, now: float) -> list[Action]:
    """One event until all nodes' ranks are done. The first node that has not left collects the reports."""
    if node.nodes > 1:
        node.watch(LEFT, 1.0)
    left = node.view.log(LEFT)
    if node.name == next((name for name in node.membership.names if name not in left), ""):
        node.watch(node.key("done"), node.slow)
        if isinstance(event, m.StoreView):
            return _end_if_all_done(node, now)
    neighbour = node.membership.neighbour(node.name)
    if left.get(neighbour, {}).get("preempted"):
        neighbour = ""  # it ends by itself
    actions = watch_neighbour(node, now, "are done") if neighbour else []
    return [*actions, *watch_stop(node, phase, now)]


def _end_if_all_done(node: Node, now: float) -> list[Action]:
    names, left = node.membership.names, node.view.log(LEFT)
    preempted = {name: line for name, line in left.items() if line.get("preempted")}
    if not {*node.view.log(node.key("done")), *preempted} >= set(names):
        return []
    done = node.view.log(node.key("done"))
    codes = [whole_number(preempted[name], "code") for name in names if name not in done]
    if codes:
        return node.propose(node.ending(now).end("preempted", max(codes), preempted=True))
    return node.propose(node.ending(now).end("all ranks succeeded", Outcome.SUCCEEDED.code))
