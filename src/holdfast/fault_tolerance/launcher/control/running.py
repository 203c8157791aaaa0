"""A cycle from its start to what ends it: START, RUN, SETTLE, DONE.

RUN watches the local ranks, the neighbour in the ring of nodes, the nodes that wait for a place, and the store's host.
SETTLE follows a failure: for at most a second the cause may still come, for a quarter of a second a signal to all
processes. What follows is written as the next cycle's record; the ranks are stopped when one stands, this node's or
another's. A healthy rank is never stopped because the store does not answer while the ranks make progress.

Does not cover: detection of hangs (the monitor), and signals other than SIGUSR1/2 that a script uses for its own ends.
"""

from __future__ import annotations

import logging
import signal

from ...stop.rules import LATE
from . import agreed_stop
from . import messages as m
from .liveness import DONE, LocalProgress
from .messages import PASSED_ON, Action, Event
from .node import Done, HostOnly, Leave, Node, Preempt, Rank, Run, Settle, Start, Stop, journal, log, received
from .records import (
    DO_NOT_REQUEUE,
    FAILED,
    LEFT,
    CycleRecord,
    Kind,
    alive_key,
    decode,
    done_key,
    encode,
    join_key,
    waiting_key,
)
from .stopping import exit_code, leave, leave_on_signal, note_exit

STEADY = 3.0
"""Seconds after its start in which a rank has got through its imports."""
KILLED = 1.0
"""Seconds in which a process ordinarily ends after SIGKILL."""
CAUSE = 1.0
"""Seconds in which a process whose connections are closed has usually ended, a GPU aside."""
SAME_MOMENT = 0.25
"""Seconds in which a signal that was sent to all processes has reached them all."""
EVIDENCE = 0.02
"""Seconds for evidence after a crash."""
REPLY = 1.0
"""Seconds after a failure for the standing record, before the ranks are stopped without it."""
ENDING, ENDING_WITH_GPU = 1.0, 10.0
"""Seconds between the end of a process's connections and its own."""
NEWCOMERS = 64
"""Nodes that wait for a place, of which node 0 watches the heartbeats."""
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *PASSED_ON}


# -- START ----------------------------------------------------------------------------------------------------


def enter_start(node: Node, phase: Start, now: float) -> list[Action]:
    """All members are ready: start the ranks."""
    assert node.membership is not None
    first, cycle = node.membership.first_rank(node.name), node.record.cycle
    node.ranks = {local: Rank(local, first + local) for local in range(node.settings.me.ranks)}
    node.activity, node.newcomers, node.began = type(node.activity)(), 0, True
    node.tick = m.Tick(contact=node.tick.contact, round_trip=node.tick.round_trip)
    begins = {"world_size": node.membership.world_size, "node_rank": node.membership.index(node.name)}
    return [
        journal("cycle_start", cycle=cycle, **begins),
        m.StartRanks(cycle, node.membership, phase.address, phase.port),
    ]


def on_start(node: Node, phase: Start, event: Event, now: float) -> list[Action]:
    """The ranks have started, or could not be."""
    match event:
        case m.RanksStarted():
            node.phase = Run(now)
        case m.StartFailed(why):
            for rank in node.ranks.values():
                rank.status = FAILED
            return leave(node, FAILED, f"node {node.name}: its ranks could not be started: {why}", now)
        case m.Signal() if event.stops:
            node.pending = event
    return []


# -- RUN ------------------------------------------------------------------------------------------------------


def enter_run(node: Node, phase: Run, now: float) -> list[Action]:
    """The ranks run; a signal that came while they were started counts now."""
    pending, node.pending = node.pending, None
    if pending is not None:
        node.phase = Preempt(pending.number, pending.by, now, now)
    return [m.EnterPhase("running", node.record.cycle)]


def on_run(node: Node, phase: Run, event: Event, now: float) -> list[Action]:
    """One event while the ranks train."""
    match event:
        case m.RankExited():
            rank = note_exit(node, event, now)
            if rank.failed:
                if event.status < 0 and -event.status in phase.passed_on and not rank.verdict:
                    node.phase = Preempt(-event.status, "", now, now)
                    return []
                node.phase = Settle(now, phase)
            elif not node.running:
                node.phase = Done()
        case m.Verdict() | m.Killed() | m.RankFailing():
            note_report(node, event, now)
        case m.Requested():
            return on_request(node, event, now)
        case m.RankStoreFailed(why):
            return [log(why, logging.ERROR), *restart(node, why, now)]
        case m.Signal(number, by):
            if not event.stops and not by:
                phase.passed_on.add(number)
                return [m.SignalRanks(number)]
            node.phase = Preempt(number, by, now, now)
        case m.Tick():
            return _on_tick(node, phase, now)
    return []


def note_report(node: Node, event: m.Verdict | m.Killed | m.RankFailing, now: float) -> None:
    """What the monitor or a rank's last exception adds to what is known of a rank."""
    rank = node.ranks[event.local]
    match event:
        case m.Verdict():
            rank.verdict, node.evidence = event.text, True
        case m.Killed():
            rank.killed = now if rank.killed is None else rank.killed
        case m.RankFailing():
            rank.failing, rank.cause, rank.text, rank.began = (
                True,
                event.cause,
                event.text,
                min(now, event.began),
            )


def on_request(node: Node, event: m.Requested, now: float) -> list[Action]:
    """A rank asked for the end of the job, or for its node to leave it."""
    why = f"rank {event.rank} (node {node.name}) asked for it: {event.description}"
    request: Action = journal("request", rank=event.rank, action=event.action, description=event.description)
    if event.action == "shutdown_workload":
        end = node.ending(now).end(why, DO_NOT_REQUEUE)
        return [request, log(f"shutting the whole job down: {why}"), *node.propose(end)]
    actions = [request, log(f"node {node.name} leaves the job: {why}"), journal("node_excluded", reason=why)]
    if node.nodes == 1:
        return [*actions, *node.propose(node.ending(now).end(why, FAILED))]
    return [*actions, *node.propose(node.ending(now).next(Kind.LEAVE, why, lost=[node.name]))]


def _on_tick(node: Node, phase: Run, now: float) -> list[Action]:
    killed = [rank for rank in node.running if rank.killed is not None and now - rank.killed > KILLED]
    if killed:
        for rank in killed:
            rank.failing, rank.began = True, now
            rank.text = rank.text or "killed by SIGKILL, and has not ended"
        node.phase = Settle(now, phase)
        return []
    actions: list[Action] = []
    if not phase.prepared and now - phase.since > STEADY:
        phase.prepared = True
        actions.append(m.PrepareNext())
    actions += watch_neighbour(node, now, "are making no progress")
    actions += _watch_newcomers(node, now)
    return [*actions, *_watch_stop(node, phase, now)]


def progress(node: Node, now: float) -> LocalProgress:
    """What the local ranks do, as a veto against a false loss of another node."""
    if isinstance(node.phase, Run | Settle):
        return node.activity.update(node.tick.boards, node.tick.cpu, node.settings.node_timeout, now)
    return DONE


def watch_neighbour(node: Node, now: float, local_ranks: str) -> list[Action]:
    """Restart without the next node in the ring when it is lost."""
    assert node.membership is not None
    name = node.membership.neighbour(node.name)
    if not name or node.proposed is not None:
        return []
    waited = node.contact.still_for(alive_key(name), now)
    if waited < progress(node, now).patience(node.settings.node_timeout):
        return []
    why = f"node {name} is gone: no sign of it for {waited:.1f} s, and the local ranks {local_ranks}"
    found: list[Action] = [log(f"NODE LOST: {why}"), journal("node_lost", lost=name, waited=round(waited, 3))]
    return [*found, *restart(node, why, now, lost=(name,))]


def restart(
    node: Node, why: str, now: float, *, lost: tuple[str, ...] = (), code: int = FAILED
) -> list[Action]:
    """Propose a restart if one is left, else the job's end."""
    settings = node.settings
    record = node.ending(now).restart(
        why, settings.max_restarts, reset=settings.reset_on_progress, exit_code=code, lost=lost
    )
    actions: list[Action] = []
    if record.kind is Kind.END and node.proposed is None:
        used = f"{record.restarts} of {settings.max_restarts} used"
        actions.append(log(f"no restart left ({used}): the job ends", logging.ERROR))
    return [*actions, *node.propose(record)]


def _watch_newcomers(node: Node, now: float) -> list[Action]:
    """On node 0: count the nodes that wait for a place, and let them in when there is room."""
    if not node.is_leader or node.proposed is not None:
        return []
    assert node.membership is not None
    gone = {*node.membership.names, *node.view.log(LEFT)}
    names = [name for name in node.view.log(join_key(node.record.cycle)) if name not in gone][:NEWCOMERS]
    limit = node.settings.node_timeout
    alive = [
        name
        for name in names
        if alive_key(name) in node.view and node.contact.still_for(alive_key(name), now) < limit
    ]
    actions: list[Action] = []
    if len(alive) != node.newcomers:
        node.newcomers = len(alive)
        node.view[waiting_key(node.record.cycle)] = str(len(alive))
        actions.append(m.Put(waiting_key(node.record.cycle), str(len(alive))))
    room = min(len(alive), node.settings.most - node.nodes)
    if room > 0 and (record := node.ending(now).join(room)):
        actions += node.propose(record)
    return actions


def _watch_stop(node: Node, phase: Run, now: float) -> list[Action]:
    """Another node was asked to stop: the ranks here follow if they take part in that."""
    wanted = decode(node.view.get(agreed_stop.stop_key(node.record.cycle), ""))
    if not wanted or phase.stop_declined or not node.tick.stop_views:
        return []
    assert node.membership is not None
    phase.stop_seen = now if phase.stop_seen is None else phase.stop_seen
    if node.stop_pages_in_use:
        node.phase = Preempt(
            int(wanted.get("signal", signal.SIGTERM)), f"node {wanted.get('node')}", now, now
        )
    elif now - phase.stop_seen >= LATE:
        phase.stop_declined = True
        names = node.membership.names
        return agreed_stop.declined(node.record.cycle, node.name, names, node.tick.stop_views)
    return []


def run_keys(node: Node) -> dict[str, float]:
    """What a node watches whose ranks run or are done, with the seconds between two reads."""
    assert node.membership is not None
    cycle, keys = node.record.cycle, dict[str, float]()
    if node.settings.is_alone:
        return keys
    if neighbour := node.membership.neighbour(node.name):
        keys |= {alive_key(neighbour): 1.0, agreed_stop.stop_key(cycle): 1.0}
    if not node.is_leader:
        return {**keys, waiting_key(cycle): 1.0}
    gone = {*node.membership.names, *node.view.log(LEFT)}
    names = [name for name in node.view.log(join_key(cycle)) if name not in gone][:NEWCOMERS]
    return {**keys, join_key(cycle): 1.0, LEFT: 1.0, **dict.fromkeys(map(alive_key, names), 1.0)}


# -- SETTLE ---------------------------------------------------------------------------------------------------


def enter_settle(node: Node, phase: Settle, now: float) -> list[Action]:
    """A rank has failed."""
    failed = _failed(node)
    if _may_be_signalled(failed):
        phase.for_signal = now + SAME_MOMENT
    phase.for_cause = now + CAUSE
    actions: list[Action] = []
    if not node.evidence:
        node.evidence, node.evidence_until = True, now + EVIDENCE
        actions.append(m.TakeEvidence("crash", EVIDENCE, failed[0].number))
    return [*actions, *_decide(node, phase, now)]


def on_settle(node: Node, phase: Settle, event: Event, now: float) -> list[Action]:
    """One event until it is clear why the ranks have failed."""
    match event:
        case m.RankExited():
            note_exit(node, event, now)
        case m.Verdict() | m.Killed() | m.RankFailing():
            note_report(node, event, now)
        case m.Requested():
            return on_request(node, event, now)
        case m.Signal(number) if event.stops or _died_of(_failed(node), number):
            node.phase = Preempt(number, "", now, now)
            return []
    return _decide(node, phase, now)


def _decide(node: Node, phase: Settle, now: float) -> list[Action]:
    if now < phase.for_signal or (now < phase.for_cause and _lacks_cause(node)):
        phase.until = phase.for_signal if now < phase.for_signal else phase.for_cause
        return []
    if phase.proposed is None:
        failed = _failed(node)
        found = failed[0]
        lost = ". No rank of this node had failed before" if found.only_lost_peer else ""
        reason = f"rank {found.number} (node {node.name}): {found.text}{lost}"
        phase.proposed, phase.until = now, now + REPLY
        return restart(node, reason, now, code=exit_code([rank for rank in failed if not rank.running]))
    if now - phase.proposed >= REPLY:
        node.phase = Stop("a rank failed", report=True)
    return []


def _failed(node: Node) -> list[Rank]:
    """The ranks that failed or are about to, the first one first.

    The kernel closes a process's connections before it has ended, with a GPU seconds before: the exceptions of its
    peers may be the earlier ones.
    """
    failed = [rank for rank in node.ranks.values() if rank.failed]
    doubt = ENDING_WITH_GPU if any(rank.status == -signal.SIGKILL for rank in failed) else ENDING
    return sorted(failed, key=lambda rank: rank.began + doubt * rank.only_lost_peer)


def _lacks_cause(node: Node) -> bool:
    """Whether all that is known is that peers were lost, and a rank still runs that may have failed first."""
    running = {rank.local for rank in node.running}
    return bool(running) and all(
        rank.only_lost_peer or (rank.verdict and rank.local in running) for rank in _failed(node)
    )


def _may_be_signalled(failed: list[Rank]) -> bool:
    """Whether one died of a signal that stops jobs, or its data loader did, and the rest may only follow from that."""
    died = [not rank.verdict and _code(rank) - 128 in STOPPING for rank in failed]
    follows = [not rank.verdict and rank.cause is not m.Cause.OWN for rank in failed]
    lost_worker = any(rank.cause is m.Cause.LOST_WORKER for rank in failed)
    return all(map(max, died, follows)) and (any(died) or lost_worker)


def _died_of(failed: list[Rank], number: int) -> bool:
    return any(_code(rank) == 128 + number for rank in failed)


def _code(rank: Rank) -> int:
    status = rank.status or 0
    return 128 - status if status < 0 else status


# -- DONE -----------------------------------------------------------------------------------------------------


def enter_done(node: Node, phase: Done, now: float) -> list[Action]:
    """The local ranks are done."""
    return [m.Append(done_key(node.record.cycle), encode({"node": node.name}))]


def on_done(node: Node, phase: Done, event: Event, now: float) -> list[Action]:
    """One event until all nodes' ranks are done. The first node that has not left collects the reports."""
    assert node.membership is not None
    if isinstance(event, m.Signal) and event.stops:
        leave_on_signal(node, event.number, now)
        return received(event)
    left, done = node.view.log(LEFT), node.view.log(done_key(node.record.cycle))
    preempted = {name: line for name, line in left.items() if line.get("preempted")}
    if not isinstance(event, m.StoreView):
        return watch_neighbour(node, now, "are done") if isinstance(event, m.Tick) else []
    if _collects(node) and {*done, *preempted} >= set(node.membership.names):
        codes = [int(preempted[name].get("code", 0)) for name in node.membership.names if name in preempted]
        if codes:
            return node.propose(node.ending(now).end("preempted", max(codes), preempted=True))
        return node.propose(node.ending(now).end("all ranks succeeded", 0))
    return []


def _collects(node: Node) -> bool:
    assert node.membership is not None
    left = node.view.log(LEFT)
    return node.name == next((name for name in node.membership.names if name not in left), "")


def done_keys(node: Node, quick: float) -> dict[str, float]:
    """What DONE watches more than RUN, with the seconds between two reads."""
    keys = {done_key(node.record.cycle): quick} if _collects(node) else {}
    return {**keys, LEFT: 1.0} if node.nodes > 1 else keys


# -- the next record --------------------------------------------------------------------------------------------


def follow(node: Node, record: CycleRecord, now: float) -> None:
    """The next cycle's record stands while the ranks run or are done: stop them, for it or for the job's end."""
    alone = isinstance(node.phase, Settle) and record.node == node.name
    lost_only = isinstance(node.phase, Settle) and all(rank.only_lost_peer for rank in _failed(node))
    if record.kind is Kind.LEAVE and record.node == node.name:  # a rank asked for it
        after = HostOnly if node.settings.is_host else Leave
        node.phase = Stop(record.reason, leave=after(0, record.reason))
        return
    take = record.is_trouble and not alone and (not isinstance(node.phase, Settle) or lost_only)
    report = record.is_trouble or isinstance(node.phase, Settle)
    node.phase = Stop(record.reason, next=record, take_evidence=take, report=report, lost=record.lost)
