"""How a membership is formed: GATHER and CONFIRM, the choice of the members, and their order.

Each node that wants a place adds a line to the log `join/N`. One node chooses: it holds a lease, which it renews every
second and which another node takes over when it is not renewed. The members are written once, by compare-and-set, so
two nodes that both choose do no harm. Every member then acknowledges; node 0 opens the ranks' store and writes where
it is. A restart that keeps its membership begins with the acknowledgements.

Nodes that trained until now come before spares, and are waited for while their heartbeats move. What always holds: no
rank starts before every member of the cycle has acknowledged it.
Does not cover: a member that vanishes after its acknowledgement. Its neighbour finds it lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from . import messages as m
from .liveness import BUSY
from .messages import NEVER, Action, Event
from .node import Confirm, Gather, Leave, Node, Start, code_of, journal, log, received
from .records import (
    FAILED,
    LEFT,
    Member,
    Membership,
    ack_key,
    alive_key,
    chooser_key,
    decode,
    encode,
    go_key,
    join_key,
    members_key,
)

LOG_AFTER = 2.0
"""Seconds after which a node logs what it waits for."""
SPARES_WAIT = 2.0
"""Seconds in which the nodes that wait for a place ask for one in the new cycle."""


# -- the order of nodes ---------------------------------------------------------------------------------------


def place(
    nodes: Collection[Member],
    previous: Membership | None,
    most: int,
    *,
    segment: int = 0,
    behind: Collection[str] = (),
) -> tuple[Member, ...]:
    """Choose at most `most` of the nodes, in order.

    Nodes of the previous membership keep their places, and a new node takes the place of a lost one. New nodes are
    ordered by their number (`--node-rank`, `SLURM_PROCID`, `GROUP_RANK`), then by name, node2 before node10. With
    `segment`, the result consists of complete groups of so many nodes of one domain each. The nodes named in `behind`
    come after all others.
    """
    before = previous.names if previous else ()
    trained = [node for node in nodes if node.node in before and node.node not in behind]
    trained.sort(key=lambda node: before.index(node.node))
    new = sorted(
        (node for node in nodes if node not in trained), key=lambda node: (node.node in behind, _rank(node))
    )
    if segment:
        return _in_groups(trained, new, previous, most // segment, segment)
    return _fill([[node] for node in trained], [[node] for node in new], [(name,) for name in before], most)


def _rank(node: Member) -> tuple[int, int, list[tuple[bool, int, str]]]:
    parts = [part for part in re.split(r"(\d+)", node.node) if part]
    natural = [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
    return (0 if node.order >= 0 else 1, node.order, natural)


def _in_groups(
    trained: list[Member], new: list[Member], previous: Membership | None, most: int, size: int
) -> tuple[Member, ...]:
    """Groups that trained keep their places, completed from their domain; then the rest of each domain."""
    before = previous.names if previous else ()
    blocks = [before[at : at + size] for at in range(0, len(before), size)]
    kept, left = [], [*trained, *new]
    for block in blocks:
        present = [node for node in left if node.node in block]
        if not present or len({_domain(node) for node in present}) > 1:
            continue
        others = [node for node in new if node in left and _domain(node) == _domain(present[0])]
        group = [member for (member,) in _units(present, others, block, size)]
        if len(group) == size:
            kept.append(group)
            left = [node for node in left if node not in group]
    rest = []
    for domain in dict.fromkeys(map(_domain, left)):
        nodes = [node for node in left if _domain(node) == domain]
        rest += [nodes[at : at + size] for at in range(0, len(nodes) - size + 1, size)]
    return _fill(kept, rest, blocks, most)


def _domain(node: Member) -> str:
    return node.domain or node.node.partition(":")[0]


def _units(present: list[Member], new: list[Member], places: Iterable[str], most: int) -> list[list[Member]]:
    filled = _fill([[node] for node in present], [[node] for node in new], [(name,) for name in places], most)
    return [[node] for node in filled]


def _fill(
    kept: list[list[Member]], new: list[list[Member]], places: Iterable[Collection[str]], most: int
) -> tuple[Member, ...]:
    """Units in their places, empty places filled with new ones, and more new ones behind, up to `most` units."""
    new = new[: max(0, most - len(kept))]
    chosen: list[list[Member]] = []
    for names in places:
        here = next((unit for unit in kept if any(node.node in names for node in unit)), None)
        if here is not None:
            chosen.append(here)
        elif new:
            chosen.append(new.pop(0))
    return tuple(node for unit in [*chosen, *new][:most] for node in unit)


# -- GATHER ---------------------------------------------------------------------------------------------------


def enter_gather(node: Node, phase: Gather, now: float) -> list[Action]:
    """Ask for a place, unless the membership is known already."""
    phase.since = now
    node.began = node.evidence = False
    return on_gather(node, phase, m.Tick(), now)


def _ask(node: Node) -> m.Append:
    return m.Append(join_key(node.record.cycle), encode(node.settings.me))


def _read_members(node: Node, phase: Gather) -> list[Action]:
    """The membership stands: this node takes part in it, or is a spare."""
    phase.has_read = True
    node.membership = Membership.decode(node.view[members_key(node.record.formed)])
    node.gone.difference_update(node.membership.names)
    if node.takes_part:
        node.phase = Confirm(phase.since)
        return []
    return [] if node.record.gather else [_ask(node)]


def _watch_members(node: Node, event: Event, now: float) -> list[Action]:
    """As a spare: when no member is left that could find the others lost, begin anew, or end with them.

    A suspended launcher may have ranks that train, so heartbeats have to stand still on all nodes, and for long.
    """
    assert node.membership is not None
    if not isinstance(event, m.Tick) or node.next_key not in node.view:
        return []
    left, limit = node.view.log(LEFT), node.settings.node_timeout
    keys = [alive_key(name) for name in node.membership.names if name not in left]
    if keys and node.contact.still_for(keys[0], now) < limit:
        return []  # one is enough to watch while it is there
    if min((node.contact.still_for(key, now) for key in keys), default=NEVER) < BUSY * limit:
        return []
    ending = node.ending(now)
    if all(left.get(name, {}).get("preempted") for name in node.membership.names):
        return node.propose(ending.end("preempted", _code(left.values()), preempted=True))
    reason = f"no node of cycle {node.record.cycle} has shown any sign for {BUSY * limit:.0f} s"
    return node.propose(ending.call_off(reason, node.membership.names))


def _take_lease(node: Node, phase: Gather, now: float, *, old: str) -> list[Action]:
    node.beats += 1
    phase.replaces = old
    phase.chooser = encode({"node": node.name, "beat": node.beats, "nnodes": node.settings.nnodes})
    phase.renew_at = now + 1.0
    return [m.Cas(chooser_key(node.record.cycle), old, phase.chooser)]


def on_gather(node: Node, phase: Gather, event: Event, now: float) -> list[Action]:
    """One event while the membership is formed."""
    if isinstance(event, m.Signal) and event.stops:
        return _withdraw(node, phase, event, now)
    if phase.has_read:
        return [*_watch_members(node, event, now), *_log_waiting(node, phase, now)]
    if node.view.get(members_key(node.record.formed)):
        return _read_members(node, phase)
    if not node.record.gather or node.next_key not in node.view:
        return []  # the next record may stand already
    if not phase.asked:
        phase.asked = True
        return [_ask(node), *_take_lease(node, phase, now, old="")]
    actions = _keep_lease(node, phase, now)
    is_chooser = phase.chooser and phase.chooser == node.view.get(chooser_key(node.record.cycle))
    if is_chooser and isinstance(event, m.Tick | m.StoreView):
        actions += _choose(node, phase, now)
    return [*actions, *_log_waiting(node, phase, now)]


def _keep_lease(node: Node, phase: Gather, now: float) -> list[Action]:
    """Renew the lease; resign when another node has it; take it over when it is not renewed."""
    key = chooser_key(node.record.cycle)
    standing = node.view.get(key)
    if standing is None or node.settings.is_alone or (phase.chooser and standing == phase.replaces):
        return []  # the answer is under way
    holder = decode(standing)
    if holder.get("node") == node.name:
        is_due = now >= phase.renew_at and standing == phase.chooser
        return _take_lease(node, phase, now, old=standing) if is_due else []
    actions: list[Action] = []
    if phase.chooser:
        phase.chooser = ""
        theirs = str(holder.get("nnodes", node.settings.nnodes))
        if theirs != node.settings.nnodes:
            actions.append(_contradiction(node, str(holder["node"]), theirs))
    if not holder or node.contact.still_for(key, now) >= node.settings.node_timeout:
        node.contact.since.clear()
        actions += _take_lease(node, phase, now, old=standing)
    return actions


def _contradiction(node: Node, other: str, theirs: str) -> Action:
    return log(
        f"node {node.name} was started with --nnodes {node.settings.nnodes}, node {other} with --nnodes {theirs}: "
        "they may wait for each other in vain; give all launchers of a job the same"
    )


def _choose(node: Node, phase: Gather, now: float) -> list[Action]:
    """Form the membership as soon as the nodes that are to take part have asked."""
    settings, record = node.settings, node.record
    if phase.formed:
        return []
    previous = None
    if record.base >= 0:
        if not node.view.get(members_key(record.base)):
            return []
        previous = Membership.decode(node.view[members_key(record.base)])
    left = node.view.log(LEFT)
    asked = {
        name: Member.decode(line)
        for name, line in node.view.log(join_key(record.cycle)).items()
        if name not in left
    }
    if missing(node, previous, asked, left, now):
        return _give_up(node, phase, previous, asked, now)
    chosen = place(asked.values(), previous, settings.most, segment=settings.segment)
    if len(chosen) < settings.least:
        phase.quorum_since = None
        if previous and all(left.get(name, {}).get("preempted") for name in previous.names):
            return node.propose(node.ending(now).end("preempted", _code(left.values()), preempted=True))
        return _give_up(node, phase, previous, asked, now)
    phase.quorum_since = now if phase.quorum_since is None else phase.quorum_since
    waited = now - phase.quorum_since
    if len(chosen) < settings.most:
        if previous is None and waited < settings.last_call:
            return []
        new = len(asked) - sum(name in asked for name in (previous.names if previous else ()))
        if previous is not None and new < record.waiting and waited < SPARES_WAIT:
            return []
    phase.formed = True
    return [m.Cas(members_key(record.cycle), "", Membership(chosen).encode())]


def missing(
    node: Node, previous: Membership | None, asked: Collection[str], left: Collection[str], now: float
) -> list[str]:
    """The nodes that trained until now, have not asked yet, and whose heartbeats move."""
    gone = {*asked, *left, *node.record.lost}
    names = [name for name in (previous.names if previous else ()) if name not in gone]
    limit = node.settings.node_timeout
    return [name for name in names if node.contact.still_for(alive_key(name), now) < limit]


def _give_up(
    node: Node, phase: Gather, previous: Membership | None, asked: Mapping[str, Member], now: float
) -> list[Action]:
    """The job ends when too few nodes have come in time."""
    if now - phase.since < node.settings.join_timeout:
        return []
    silent = [
        name for name in (previous.names if previous else ()) if name not in {*asked, *node.view.log(LEFT)}
    ]
    which = f": no sign of node {', '.join(silent)}" if silent else ""
    reason = (
        f"gave up waiting for the other nodes (rendezvous timeout){which}. {len(asked)} of {node.settings.nnodes} "
        f"asked for a place in cycle {node.record.cycle} within {node.settings.join_timeout:g} s"
    )
    return node.propose(node.ending(now).end(reason, FAILED))


def _code(left: Iterable[Mapping[str, Any]]) -> int:
    return max((int(line.get("code", 0)) for line in left), default=0)


def _withdraw(node: Node, phase: Gather, event: m.Signal, now: float) -> list[Action]:
    """A signal while no rank runs: the others must not count on this node."""
    reason = f"node {node.name} left before cycle {node.record.cycle} began"
    code = code_of(event.number, node.settings.preempted_code)
    record = None
    if node.settings.is_host:
        record = node.ending(now).end(f"{reason}; it hosts the rendezvous", code, preempted=True)
    node.phase = Leave(code, reason, record, preempted=True)
    release = [m.Cas(chooser_key(node.record.cycle), phase.chooser, "")] if phase.chooser else []
    return [*received(event), *release]


def _log_waiting(node: Node, phase: Gather, now: float) -> list[Action]:
    if phase.logged or now - phase.since < LOG_AFTER:
        return []
    phase.logged = True
    settings, cycle, who = node.settings, node.record.cycle, f"node {node.name}"
    if phase.has_read:
        if node.nodes >= settings.most:
            return [log(f"{who} is a spare: the job runs on {node.nodes} nodes, this one waits")]
        return [log(f"{who} joined during cycle {cycle}; it will be added at the next restart")]
    if phase.quorum_since is not None:
        wait = f"waits {settings.last_call:g} s for more nodes to join cycle {cycle}"
        return [log(f"{who} {wait} ({settings.nnodes.replace(':', ' to ')} can take part), then begins")]
    wanted = settings.nnodes.replace(":", " to ")
    text = f"waits for other nodes to join cycle {cycle}: {wanted} needed; gives up after {settings.join_timeout:g} s"
    return [log(f"{who} {text}")]


# -- CONFIRM --------------------------------------------------------------------------------------------------


def enter_confirm(node: Node, phase: Confirm, now: float) -> list[Action]:
    """Acknowledge the membership."""
    phase.since = now
    opens = [m.OpenRankStore()] if node.is_leader else []
    return [m.Append(ack_key(node.record.cycle), encode({"node": node.name})), *opens]


def on_confirm(node: Node, phase: Confirm, event: Event, now: float) -> list[Action]:
    """One event until all members are ready."""
    assert node.membership is not None
    cycle = node.record.cycle
    match event:
        case m.Signal() if event.stops:
            reason = f"node {node.name} left before cycle {cycle} began"
            code = code_of(event.number, node.settings.preempted_code)
            record = node.without_me(reason, now, code=code, preempted=True)
            if record is None:
                record = node.ending(now).call_off(reason, [node.name])
            node.phase = Leave(code, reason, record, preempted=True)
            return received(event)
        case m.RankStoreOpen(address, port):
            phase.go = encode({"address": address, "port": port})
        case m.RankStoreFailed(why):
            return node.propose(node.ending(now).call_off(why))
    if standing := node.view.get(go_key(cycle)):
        where = decode(standing)
        node.phase = Start(str(where.get("address", "")), int(where.get("port", 0)))
        return []
    is_news = isinstance(event, m.StoreView | m.RankStoreOpen)
    if (
        is_news
        and phase.go
        and not phase.written
        and node.view.log(ack_key(cycle)).keys() >= {*node.membership.names}
    ):
        phase.written = True
        return [m.Cas(go_key(cycle), "", phase.go)]
    if not isinstance(event, m.Tick):
        return []
    neighbour = node.membership.neighbour(node.name)
    if neighbour and node.contact.still_for(alive_key(neighbour), now) >= node.settings.node_timeout:
        reason = f"node {neighbour} of cycle {cycle} did not answer"
        return node.propose(node.ending(now).call_off(reason, [neighbour]))
    if now - phase.since >= node.settings.join_timeout:
        reason = f"cycle {cycle} could not begin within {node.settings.join_timeout:g} s"
        return node.propose(node.ending(now).end(reason, FAILED))
    return []


def note_missing(node: Node) -> list[Action]:
    """For the journal: members of the cycle before that are not in this one, on node 0."""
    key = members_key(node.record.base)
    if not (node.is_leader and node.membership and node.record.gather and key in node.view):
        return []
    before = Membership.decode(node.view[key]).names
    names = [name for name in before if name not in node.membership.names]
    return [journal("node_not_back", cycle=node.record.base, lost=names)] if names else []


def gather_keys(node: Node, phase: Gather, quick: float) -> dict[str, float]:
    """What GATHER watches, with the seconds between two reads."""
    record = node.record
    if phase.has_read:
        return {
            LEFT: 1.0,
            **dict.fromkeys((key for key in node.contact.since if key.startswith(alive_key(""))), 1.0),
        }
    keys = {members_key(record.formed): quick}
    if not record.gather:
        return keys
    keys[chooser_key(record.cycle)] = 1.0
    if not phase.chooser:
        return keys
    keys[join_key(record.cycle)] = quick
    keys[LEFT] = 1.0
    if record.base >= 0:
        keys[members_key(record.base)] = 1.0
        keys.update(
            dict.fromkeys((name for name in node.contact.since if name.startswith(alive_key(""))), 1.0)
        )
    return keys


def confirm_keys(node: Node, phase: Confirm, quick: float) -> dict[str, float]:
    """What CONFIRM watches, with the seconds between two reads."""
    assert node.membership is not None
    keys = {go_key(node.record.cycle): quick}
    if node.is_leader:
        keys[ack_key(node.record.cycle)] = quick
    if neighbour := node.membership.neighbour(node.name):
        keys[alive_key(neighbour)] = 1.0
    return keys
