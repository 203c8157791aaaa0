"""How a membership is formed: GATHER and CONFIRM, the choice of the members, and their order.

Each node that wants a place adds a line to the log `join/N`. The store's host chooses the members; where its heartbeat
does not move, every node does. They are written once, by compare-and-set, so two nodes that choose do no harm. Every
member then acknowledges; node 0 opens the ranks' store and writes where it is. A restart that keeps its membership
begins with the acknowledgements.

Nodes that trained until now come before spares, and are waited for while their heartbeats move. A node that past
failures make suspect, or that its own checks find sick, comes after all others: a spare takes its place. With
--ft-exclude-suspects or --ft-health-action exclude it has no place where enough others are there, and the sick one
leaves. Where all nodes are suspect or sick, none is left out.
What always holds: no rank starts before every member of the cycle has acknowledged it; without a node that waits, and
without these options, every node keeps its place.
Does not cover: a member that vanishes after its acknowledgement. Its neighbour finds it lost. A failure whose report is
not made before the next one: it counts from the restart after that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ..exit_codes import Outcome
from . import messages as m
from .messages import Action, Event, Log, journal
from .node import BUSY, SAVING, Confirm, Gather, Leave, Node, Start
from .records import FAILURES, HOST, LEFT, Kind, Member, Membership, decode, encode, key, whole_number
from .suspects import suspected_nodes

LOG_AFTER = 2.0
"""Seconds after which a node logs what it waits for."""
FAILED_WAIT = 5.0
"""Seconds in which nodes may ask for the place of one that failed, before a job that needs it ends."""
SPARES_WAIT = 2.0
"""Seconds in which the nodes that wait for a place ask for one in the new cycle."""


# -- the order of nodes ---------------------------------------------------------------------------------------


def place(
    nodes: Collection[Member],
    previous: Membership,
    most: int,
    suspected: Collection[str] = (),
    times: Mapping[str, int] | None = None,
    segment: int = 1,
) -> tuple[Member, ...]:
    """Choose at most `most` of the nodes, in order. With a `segment` they are complete groups of that size, one
    after the other, each of one domain.

    Nodes of the previous membership keep their places, and a new node takes the place of a lost one. New nodes are
    ordered by how often they were suspected until now (`times`), by their number (`--node-rank`, `SLURM_PROCID`,
    `GROUP_RANK`), then by name, node2 before node10. Suspected nodes come after all others.
    """
    there, before = {node.node for node in nodes}, set(previous.names)
    trained = set([name for name in previous.names if name in there][:most])

    def order(node: Member) -> tuple[Any, ...]:
        is_new = node.node not in trained
        return node.node in suspected, is_new, (times or {}).get(node.node, 0) if is_new else 0, _order(node)

    if segment > 1:
        return _in_segments(sorted(nodes, key=order), previous.names, most, segment)
    chosen = {node.node: node for node in sorted(nodes, key=order)[:most]}
    new = [name for name in chosen if name not in before]
    kept = [name if name in chosen else new.pop(0) for name in previous.names if name in chosen or new]
    return tuple(chosen[name] for name in (*kept, *new))


def _in_segments(
    ranked: list[Member], before: tuple[str, ...], most: int, segment: int
) -> tuple[Member, ...]:
    """The best complete groups; both they and their nodes keep the order that they had."""
    open_groups: dict[str, list[Member]] = {}
    groups: list[list[Member]] = []
    for node in ranked:
        group = open_groups.setdefault(node.domain, [])
        group.append(node)
        if len(group) == segment:  # in the order in which their last node comes
            groups.append(open_groups.pop(node.domain))
    place_before = {name: number for number, name in enumerate(before)}

    def order(node: Member) -> tuple[Any, ...]:
        return place_before.get(node.node, len(before)), _order(node)

    chosen = [sorted(group, key=order) for group in groups[: most // segment]]
    return tuple(node for group in sorted(chosen, key=lambda group: order(group[0])) for node in group)


def _order(node: Member) -> tuple[bool, int, list[tuple[bool, int, str]]]:
    parts = [part for part in re.split(r"(\d+)", node.node) if part]
    natural = [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
    return node.order < 0, node.order, natural


# -- GATHER ---------------------------------------------------------------------------------------------------


def enter_gather(node: Node, phase: Gather, now: float) -> list[Action]:
    """The next record may exist already, so the first read of it comes before anything else."""
    phase.since = now
    checks = [m.CheckHealth(node.record.cycle)] if node.awaits_health else []
    return [*checks, *(node.read_iteration(now) if node.record.iteration < 0 else [])]


def on_gather(node: Node, phase: Gather, event: Event, now: float) -> list[Action]:
    """One event while the membership is formed, or while this node waits as a spare."""
    record = node.record
    sick = {"sick": node.health, "may_leave": node.may_leave} if node.health else {}
    me = replace(node.settings.me, nnodes=node.settings.nnodes)
    ask = m.Append(node.key("join"), encode({**asdict(me), **sick}))
    is_compared = node.settings.is_host or phase.has_compared
    contradiction = [] if is_compared else _compare_nnodes(node, phase, [decode(node.watch(HOST, 1.0))])
    if members := node.watch(key("members", record.formed)):
        if not node.settings.is_host and HOST not in node.view:
            return []  # not read yet
        node.membership = Membership.decode(members)
        if node.takes_part:
            node.phase = Confirm()
            return contradiction
        if node.may_leave:
            reason = f"node {node.name} is sick: {node.health}"
            node.phase = Leave(Outcome.EXCLUDED.code, reason, "excluded")
            text = f"node {node.name} leaves the job: {reason}"
            return [Log(text), journal("node_excluded", reason=reason)]
        if not phase.is_spare:
            phase.is_spare, phase.has_logged = True, False
        return [
            *contradiction,
            *([] if node.awaits_health else node.once(ask)),
            *_watch_members(node, event, now),
            *_log_waiting(node, phase, now),
        ]
    if not record.gather or node.next_key not in node.view or node.awaits_health:
        return contradiction
    actions = [*contradiction, *node.once(ask)]
    if _chooses(node, phase, now):
        actions += _choose(node, phase, event, now)
    return [*actions, *_log_waiting(node, phase, now)]


def _chooses(node: Node, phase: Gather, now: float) -> bool:
    """Whether this node chooses: it hosts the store, or the launcher that hosts it is lost."""
    if node.settings.is_host:
        return True
    host = decode(node.watch(HOST, 1.0)).get("node")
    if host is None:
        return HOST in node.view and now - phase.since >= node.settings.node_timeout
    return node.is_lost(str(host), node.settings.node_timeout, now)


def _choose(node: Node, phase: Gather, event: Event, now: float) -> list[Action]:
    """Form the membership as soon as the nodes that are to take part have joined."""
    settings, record = node.settings, node.record
    node.watch(node.key("join"))
    logs = (LEFT,) if settings.is_alone else (LEFT, FAILURES)
    for log in logs:
        node.watch(log, 1.0)
    before = node.watch(key("members", record.base)) if record.base >= 0 else ""
    if (record.base >= 0 and not before) or any(log not in node.view for log in logs):
        return []  # not read yet
    if not isinstance(event, m.Tick) and getattr(event, "key", "") not in (node.key("join"), *logs):
        return []
    previous = Membership.decode(before)
    lines = node.view.log(node.key("join"))
    joined = {name: Member.decode(line) for name, line in lines.items() if name not in node.view.log(LEFT)}
    actions = _compare_nnodes(node, phase, [lines[name] for name in joined])
    suspected, times = suspected_nodes(node, {*joined.values(), *previous.members}, now)
    excluded = {name for name in joined if lines[name].get("may_leave")}
    excluded |= suspected.keys() if settings.exclude_suspects else set()
    sick = {name: str(why) for name in joined if (why := lines[name].get("sick"))}
    suspected |= {name: name for name in sick}
    waits = [name for name in missing(node, previous, joined, now) if name not in suspected]
    able = [each for name, each in joined.items() if name not in excluded]

    def choose(nodes: Collection[Member], most: int) -> tuple[Member, ...]:
        return place(nodes, previous, most, suspected.keys(), times, settings.segment)

    chosen = choose(able, settings.most)
    if len(chosen) < settings.least:
        chosen = choose(joined.values(), settings.least if able else settings.most)
    if len(chosen) < settings.least:
        phase.quorum_since = None
        is_early = waits and now - phase.since < settings.join_timeout
        return actions if is_early else [*actions, *_time_out(node, phase, previous, joined, now)]
    phase.quorum_since = now if phase.quorum_since is None else phase.quorum_since
    waited = now - phase.quorum_since
    is_whole = record.kind is Kind.RESTART and not record.lost
    names = [each.node for each in chosen]
    full = settings.most - settings.most % settings.segment
    phase.wait = 0.0
    if waits:
        phase.wait = settings.join_timeout if is_whole else settings.last_call + SAVING
    elif len(chosen) < full or not suspected.keys().isdisjoint(names):
        new = len(joined) - sum(name in joined for name in previous.names)
        phase.wait = (
            settings.last_call if len(joined) < settings.most else min(SPARES_WAIT, settings.last_call)
        )
        if before:
            phase.wait = SPARES_WAIT if new < record.waiting else 0.0
    if waited < phase.wait:
        return actions
    phase.has_logged = True  # nothing is waited for
    found = Membership(chosen, tuple(_unfit_nodes(node, suspected, sick, joined, names, now).items()))
    return [*actions, *node.once(m.Cas(node.key("members"), "", found.encode()))]


def _unfit_nodes(
    node: Node,
    suspected: Mapping[str, str],
    sick: Mapping[str, str],
    joined: Collection[str],
    names: Collection[str],
    now: float,
) -> dict[str, str]:
    """The suspected and sick nodes that are there, and the domains of which none has a place; with why it is sick."""
    there = [
        name
        for name in suspected
        if name in joined
        or not (name in node.record.lost or node.is_lost(name, node.settings.node_timeout, now))
    ]
    kept = {suspected[name] for name in names if name in suspected}
    domains = sorted({suspected[name] for name in there if name not in names} - kept)
    return {name: sick.get(name, "") for name in (*there, *domains)}


def missing(node: Node, previous: Membership, joined: Collection[str], now: float) -> list[str]:
    """The nodes that trained until now, have not joined yet, and whose heartbeats move."""
    here = {*joined, *node.record.lost}
    names = [name for name in previous.names if name not in here]
    return [name for name in names if not node.is_lost(name, node.settings.node_timeout, now)]


def _time_out(
    node: Node, phase: Gather, previous: Membership, joined: Collection[str], now: float
) -> list[Action]:
    """The job ends when too few nodes have come in time, or all that trained received a stop signal."""
    left, before = node.view.log(LEFT), previous.names
    if end := _end_if_all_preempted(node, before, now):
        return end
    gone = {name: left[name] for name in before if name in left}
    failed = [name for name, line in gone.items() if whole_number(line, "code") and not line.get("preempted")]
    if failed and now - phase.since >= FAILED_WAIT:
        why = f"node {failed[-1]}: {gone[failed[-1]].get('why')}"
        reason = f"{why}. Too few nodes are left: {len(joined)} of {node.settings.nnodes}"
        return _end(node, reason, whole_number(gone[failed[-1]], "code"), now)
    if now - phase.since < node.settings.join_timeout:
        return []
    silent = [name for name in before if name not in joined and name not in left]
    which = f": no sign of node {', '.join(silent)}" if silent else ""
    which += "".join(f"; node {name} left: {line.get('why')}" for name, line in gone.items())
    lost = f"timed out waiting for the other nodes (rendezvous timeout){which}"
    reason = (
        f"{lost}. {len(joined)} of {node.settings.nnodes} joined cycle {node.record.cycle} within "
        f"{node.settings.join_timeout:g} s"
    )
    return _end(node, reason, Outcome.TOO_FEW_NODES.code, now, lost)


def _end(node: Node, reason: str, code: int, now: float, lost: str = "") -> list[Action]:
    """The job ends because too few nodes are left; `lost` is the text for the list of incidents."""
    if node.has_proposed:
        return []
    record = [journal("job_lost", reason=lost, host="")] if lost else []
    return [Log(reason, logging.ERROR), *record, *node.propose(node.ending(now).end(reason, code))]


def _end_if_all_preempted(node: Node, names: Collection[str], now: float) -> list[Action]:
    """The job ends with the nodes that trained, where all of them received a stop signal."""
    lines = [node.view.log(LEFT).get(name, {}) for name in names]
    if not lines or not all(line.get("preempted") for line in lines):
        return []
    code = max(whole_number(line, "code") for line in lines)
    return node.propose(node.ending(now).end("preempted", code, preempted=True))


def _compare_nnodes(node: Node, phase: Gather, others: Iterable[Mapping[str, Any]]) -> list[Action]:
    """Log the first launcher with another --nnodes: the two may wait for each other without end."""
    own = node.settings.nnodes
    other = next((each for each in others if each.get("nnodes", own) != own), None)
    if other is None or phase.has_compared:
        return []
    phase.has_compared = True
    text = f"node {node.name} was started with --nnodes {own}, node {other['node']} with --nnodes {other['nnodes']}"
    return [Log(f"{text}: the job may never start. Give all launchers of a job the same --nnodes")]


def _watch_members(node: Node, event: Event, now: float) -> list[Action]:
    """As a spare: when no member is left that could find the others lost, begin anew, or end with them.

    A suspended launcher may have ranks that train, so no heartbeat may move for long, of any node.
    """
    if not isinstance(event, m.Tick) or node.next_key not in node.view:
        return []
    names, left = node.membership.names, node.view.log(LEFT)
    there = [name for name in names if name not in left]
    if there and not node.is_lost(there[0], node.settings.node_timeout, now):
        return []  # one is enough to watch while it lives
    patience = BUSY * node.settings.node_timeout
    lost = [name for name in there if node.is_lost(name, patience, now)]
    if lost != there:
        return []
    if end := _end_if_all_preempted(node, names, now):
        return end
    reason = f"no node of cycle {node.record.cycle} has shown any sign for {patience:.0f} s"
    return node.propose(node.ending(now).call_off(reason, names))


def _log_waiting(node: Node, phase: Gather, now: float) -> list[Action]:
    """Once: what this node waits for."""
    if phase.has_logged or now - phase.since < LOG_AFTER:
        return []
    phase.has_logged = True
    settings, cycle, who = node.settings, node.record.cycle, f"node {node.name}"
    wanted = settings.nnodes.replace(":", " to ")
    if phase.is_spare and node.name in node.membership.left_out:
        why = "it is sick" if dict(node.membership.unfit)[node.name] else "it is suspect"
        text = f"has no place in cycle {cycle}, since {why}; it waits"
    elif phase.is_spare and node.nodes >= settings.most:
        text = f"is a spare: the job runs on {node.nodes} nodes, this one waits"
    elif phase.is_spare:
        text = f"joined during cycle {cycle}; it will be added at the next restart"
    elif phase.quorum_since is not None:
        wait = f"waits {phase.wait:g} s for more nodes to join cycle {cycle}"
        text = f"{wait} ({wanted} can take part), then begins"
    else:
        limit = f"timeout {settings.join_timeout:g} s"
        text = f"waits for other nodes to join cycle {cycle}: {wanted} needed; {limit}"
    return [Log(f"{who} {text}")]


# -- CONFIRM --------------------------------------------------------------------------------------------------


def enter_confirm(node: Node, phase: Confirm, now: float) -> list[Action]:
    """Acknowledge the membership."""
    phase.since = now
    opens = [m.OpenRankStore(node.record.cycle)] if node.is_leader else []
    return [m.Append(node.key("ack"), encode({"node": node.name})), *opens]


def on_confirm(node: Node, phase: Confirm, event: Event, now: float) -> list[Action]:
    """One event until all members are ready."""
    cycle = node.record.cycle
    if isinstance(event, m.RankStoreOpen) and event.cycle == cycle:
        phase.go = encode({"address": event.address, "port": event.port})
    if go := node.view.get(node.key("go")) if node.is_leader else node.watch(node.key("go")):
        if node.is_reading(now):
            return []  # what the ranks are about to save would count as saved before
        where = decode(go)
        node.phase = Start(str(where.get("address", "")), whole_number(where, "port"))
        return []
    if phase.go:
        node.watch(node.key("ack"))
        if isinstance(event, m.StoreView | m.RankStoreOpen) and _all_ready(node):
            return node.once(m.Cas(node.key("go"), "", phase.go))
    if node.tick.rank_store and node.is_leader:
        node.phase = Leave(Outcome.NOT_STARTED.code, node.tick.rank_store, "failed")
        return []
    node.watch(LEFT, 1.0)
    if gone := node.view.log(LEFT).keys() & set(node.membership.names):
        return node.propose(node.without(min(gone), now))
    neighbour = node.membership.neighbour(node.name)
    if neighbour and node.is_lost(neighbour, node.settings.node_timeout, now):
        reason = f"node {neighbour} of cycle {cycle} did not answer"
        return node.propose(node.ending(now).call_off(reason, [neighbour]))
    if now - phase.since >= node.settings.join_timeout:
        late = [name for name in node.membership.names if name not in node.view.log(node.key("ack"))]
        reason = f"cycle {cycle} could not begin within {node.settings.join_timeout:g} s"
        return node.propose(node.ending(now).call_off(reason, late if node.is_leader else ()))
    return []


def _all_ready(node: Node) -> bool:
    return node.view.log(node.key("ack")).keys() >= set(node.membership.names)


def changed_members(node: Node) -> list[Action]:
    """Where a membership was formed: every node logs which nodes are sick; node 0 records it, and which members of the
    cycle before have no place."""
    if not node.record.gather:
        return []
    members, cycle = node.membership, node.record.cycle
    before = node.view.get(key("members", node.record.base), "") if node.is_leader else ""
    previous, unfit = Membership.decode(before).names, dict(members.unfit)
    replaced = [name for name in previous if name in members.left_out]
    actions: list[Action] = []
    for name, why in unfit.items():
        if why:
            trains = name in members.names
            effect = "it trains, as no other node waits for its place" if trains else "it has no place"
            actions += [] if name in replaced else [Log(f"node {name} is sick, {effect}: {why}")]
            if node.is_leader:
                actions.append(journal("node_sick", cycle=cycle, sick=name, reason=why, trains=trains))
    for name in replaced:
        number, why = previous.index(name), unfit[name]
        instead = members.names[number] if number < len(members.names) else ""
        instead = "" if instead in previous else instead
        effect = f"node {instead} takes its place" if instead else "the others continue without it"
        text = f"node {name} is sick, {effect}: {why}" if why else f"node {name} is suspect: {effect}"
        more = {name: value for name, value in (("sick", why), ("instead", instead)) if value}
        actions += [Log(text), journal("node_replaced", cycle=cycle - 1, suspect=name, **more)]
    placed = {*members.names, *members.left_out}
    names = [name for name in previous if name not in placed]
    return [*actions, *([journal("node_not_back", cycle=node.record.base, lost=names)] if names else [])]
