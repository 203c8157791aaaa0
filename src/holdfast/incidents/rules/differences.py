"""All ranks wait for their peers: which one is in another collective than the others, or left one out. Pure.

The two ends of one exchange come first, then the edges of the wait-for graph: the rank for which others wait and that
waits for none. Then the flight recorder, circles and pipelines, the steps, and the places in the program. The odd one
out needs a majority; of two ranks only the one that left its own pattern is named.
Does not cover: ranks that all wait in the same collective, where no rank differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from ..evidence import Collective
from ..verdict import LOW, MEDIUM, Edge, Kind, Strength, Verdict, Via
from . import recorder
from .graph import P2P, JobView, RankView, transfers, waits_in
from .sentence import against, against_nobody, ranks

MISMATCHED, MISSING = Kind.MISMATCHED_COLLECTIVE, Kind.MISSING_COLLECTIVE


def difference(job: JobView) -> Verdict | None:
    """The verdict on ranks of which all wait; None if none differs."""
    return next((found for rule in _DIFFERENCES if (found := rule(job)) is not None), None)


def _pair(job: JobView) -> Verdict | None:
    """The two ends of an exchange that both have started and that does not end, on two nodes, and no other cause.

    Each end has its part on its GPU, or in its blocking call: either node may be the cause, or the link between them.
    Does not cover: an exchange of more than two ranks, which has no single link.
    """
    ends = {view.rank: _exchanges(view) for view in job.waiting}
    pairs = {
        (rank, other)
        for rank, exchanges in ends.items()
        for mine in exchanges
        for other in ends.keys() & ({mine.peer} if mine.p2p else set(mine.members))
        if rank < other and any(_meet(rank, mine, other, theirs) for theirs in ends[other])
    }
    if len(pairs) != 1 or not job.is_complete:
        return None
    (pair,) = pairs
    one, other = (view for view in job.waiting if view.rank in pair)
    awaited: dict[int, set[int]] = defaultdict(set)
    for edge in job.direct:
        for rank in edge.waiters:
            awaited[rank] |= {*edge.awaited}
    reached = {*pair}
    while more := {rank for rank, those in awaited.items() if those <= reached} - reached:
        reached |= more
    if one.evidence.node == other.evidence.node or awaited.keys() & {*pair} or awaited.keys() - reached:
        return None  # a rank waits for something else, or in a circle
    who = " and ".join(f"rank {view.rank} (node {view.evidence.node})" for view in (one, other))
    names = " and ".join(dict.fromkeys(view.activity.operation for view in (one, other)))
    text = f"{who} have both started {names} with each other, which does not end: one of them, or the link between them"
    return replace(against_nobody(Kind.NETWORK, text, MEDIUM, job.waiters), pair=pair)


def _exchanges(view: RankView) -> list[Collective]:
    """What it has started with one other rank."""
    found = transfers(view) + [each for each in waits_in(view) if len(each.members) == 2]
    return [each for each in found if each.state == recorder.STARTED or not each.state]


def _meet(rank: int, mine: Collective, other: int, theirs: Collective) -> bool:
    """Whether these are the two ends of one exchange."""
    if mine.p2p != theirs.p2p:
        return False
    if mine.p2p:
        is_mutual = (mine.peer, theirs.peer) == (other, rank)
        return is_mutual and recorder.is_send(mine) != recorder.is_send(theirs)
    return _key(mine) == _key(theirs)


def _key(entry: Collective) -> tuple[object, ...]:
    """Equal for the parts of ranks that are in one collective and agree."""
    return recorder.place_of(entry), recorder.signature(entry)


def _sink(job: JobView) -> Verdict | None:
    """The only rank for which others wait and that waits for none; or the only one that waits for all others."""
    views = {view.rank: view for view in job.waiting}
    for strength in (Strength.PROOF, Strength.STRONG):
        found = {rank: edge for rank, edge in job.sinks(strength).items() if rank in views}
        edge = next(iter(found.values()), None)
        if edge is None:
            continue
        is_shown = edge.strength is Strength.PROOF or edge.via in (Via.STORE, Via.TEARDOWN, Via.INIT)
        is_sure = is_shown or len(views) > 2
        if len(found) == 1 and is_sure:
            culprit = views[next(iter(found))]
            own = sorted(waits_in(culprit), key=lambda entry: -entry.ago)
            others_in = _instead(own[0], [view for view in job.waiting if view is not culprit]) if own else []
            if len(others_in) == 1:
                return None  # others wait for it, and it waits in vain: one of two ranks is in the wrong collective
            return _absent(culprit, edge, own, others_in, job)
        if len(edge.waiters) == 1 and 1 < len(found) == len(views) - 1 and edge.waiters[0] in views:
            ahead = views[edge.waiters[0]]
            if _went_on(ahead, job):
                continue
            if (other := _in_another_collective(job)) and other.rank is not None:
                return other
            entry = recorder.latest(ahead.evidence.collectives)
            text = f"waits in {recorder.described(entry) if entry else 'a collective'}, to which no other rank came"
            return against(ahead.evidence, MISMATCHED, text, MEDIUM, job.waiters)
    return None


def _absent(
    culprit: RankView, edge: Edge, own: list[Collective], others_in: list[Collective], job: JobView
) -> Verdict:
    """In words, what it left out, with what it waits in itself, and what the others entered in that one's place."""
    others = [view for view in job.waiting if view is not culprit]
    others.sort(key=lambda view: view.rank not in edge.waiters)
    waiter, entries = others[0], culprit.evidence.collectives
    theirs = [entry for view in others for entry in waits_in(view)]
    theirs.sort(key=lambda entry: recorder.reached(entries, entry))
    where = recorder.described(theirs[0]) if theirs else waiter.activity.operation
    operation, kind = culprit.activity.operation, MISSING
    if edge.via is Via.STORE:
        kind, text = Kind.STARTUP, "cannot reach the rendezvous store, although all other ranks can"
        text += ": check MASTER_ADDR and MASTER_PORT"
    elif edge.via is Via.INIT:
        kind, text = Kind.STARTUP, f"waits in {operation}, and the others, which have met, in {where}"
        text += ": check its address, rank and world size"
    elif edge.via is Via.TEARDOWN:
        text = f"is at its end, in {operation}, and never came to the collective of the others"
    elif edge.via is Via.GPU:
        entered = [entry for entry in theirs if recorder.reached(entries, entry)]
        where = recorder.described((entered or own)[0])
        text = f"has enqueued {where}, and its GPU has not begun it: an earlier kernel there does not end"
    elif edge.via is Via.PEER:
        kind = MISMATCHED
        text = f"is in {operation}; rank {waiter.rank} waits in {waiter.activity.operation} for it"
    elif others_in:
        kind = MISMATCHED
        mine, others_mine = recorder.described(own[0]), recorder.described(others_in[0])
        text = f"is in {mine}, where the others were in {others_mine}"
    else:
        doing = f"waits in {recorder.described(own[0])}" if own else culprit.activity.text
        text = f"{doing} and never came to {where}, in which the others wait"
    return against(culprit.evidence, kind, text, MEDIUM, job.waiters)


def _went_on(ahead: RankView, job: JobView) -> bool:
    """Whether it entered the collective in which all others wait, as they did, and left it.

    That is right where a rank only contributes, as in a gather.
    """
    own = {recorder.place_of(each): each for each in ahead.evidence.collectives}
    left = {_key(each) for each in own.values() if each not in waits_in(ahead)}
    theirs = [entry for view in job.waiting if view is not ahead for entry in waits_in(view)[:1]]
    return bool(theirs) and left >= {_key(each) for each in theirs}


def _instead(entry: Collective, others: list[RankView]) -> list[Collective]:
    """What all others entered in the place of this collective, if none entered this one."""
    entered = [each for view in others for each in view.evidence.collectives]
    same = [each for each in entered if recorder.place_of(each) == recorder.place_of(entry)]
    is_other = all(recorder.signature(each) != recorder.signature(entry) for each in same)
    return same if is_other else []


def _in_another_collective(job: JobView) -> Verdict | None:
    """Whose operation, size or type differs in the first collective of a group in which a rank waits.

    Ranks that have left this collective count: a rank that only contributes leaves it early.
    """
    views = {view.rank: view for view in job.waiting}
    groups: dict[recorder.Group, dict[int, Collective]] = defaultdict(dict)
    entered: dict[recorder.Group, dict[int, Collective]] = defaultdict(dict)
    for view in job.waiting:
        for entry in view.evidence.collectives:
            if not entry.p2p:
                entered[recorder.place_of(entry)][view.rank] = entry
        for entry in waits_in(view):
            groups[recorder.group_of(entry)][view.rank] = entry
            entered[recorder.place_of(entry)][view.rank] = entry
    for waits in sorted(groups.values(), key=len, reverse=True):
        place = recorder.place_of(min(waits.values(), key=lambda each: each.sequence))
        signatures = {rank: recorder.signature(entry) for rank, entry in entered[place].items()}
        if len(set(signatures.values())) > 1:
            break
    else:
        return None
    entries = entered[place]
    off = recorder.odd(signatures)
    if len(off) != 1:
        if entries != waits:
            return None
        off = tuple(
            rank for rank in sorted(entries) if recorder.breaks_its_pattern(views[rank].evidence.collectives)
        )
    one = off[0] if len(off) == 1 else min(entries)
    others = [rank for rank in sorted(entries) if signatures[rank] != signatures[one]]
    other = next((rank for rank in others if waits.get(rank) == entries[rank]), others[0])
    mine, theirs = recorder.described(entries[one]), recorder.described(entries[other])
    if mine == theirs:
        mine, theirs = f"{mine} of {entries[one].dtype}", f"{theirs} of {entries[other].dtype}"
    if len(off) == 1:
        text = f"was in {mine}, and rank {other} in {theirs}"
        if all(waits.get(rank) == entries[rank] for rank in (one, other)):
            text = f"is in {mine} while rank {other} is in {theirs}"
        return against(views[one].evidence, MISMATCHED, text, MEDIUM, job.waiters)
    return _undecided(f"rank {one} is in {mine} and rank {other} in {theirs}", job)


def _undecided(text: str, job: JobView) -> Verdict:
    return against_nobody(MISMATCHED, f"{text}; which of them is wrong is not known", LOW, job.waiters)


def _in_a_cycle(job: JobView) -> Verdict | None:
    """Each waits for another one that waits: in other groups, or both ranks of a pair send first.

    The one that left its own pattern is named, else the one for which all others wait.
    """
    edges = [edge for edge in job.direct if edge.strength is Strength.PROOF]
    views = {view.rank: view for view in job.waiting}
    waiters = {rank for edge in edges for rank in edge.waiters}
    awaited = {rank for edge in edges for rank in edge.awaited}
    in_cycle = sorted(waiters & awaited & views.keys())
    if not in_cycle or awaited - views.keys():
        return None
    off = [rank for rank in in_cycle if recorder.leaves_its_order(views[rank].evidence.collectives)]
    why = "by its own earlier steps another collective was next"
    if len(off) != 1:
        by_edges: dict[int, tuple[int, ...]] = defaultdict(tuple)
        for number, edge in enumerate(edges):
            for rank in edge.awaited if edge.via is Via.RECORDER else ():
                by_edges[rank] += (number,)
        all_of = {
            of: {rank for number in of for rank in edges[number].waiters} for of in {*by_edges.values()}
        }
        off = [
            rank
            for rank, of in by_edges.items()
            if 1 < len(all_of[of]) - (rank in all_of[of]) == len(views) - 1
        ]
        why = "all others wait for it in another collective"
    if len(off) == 1:
        culprit = views[off[0]]
        text = f"{culprit.activity.text}; {why}"
        return against(culprit.evidence, MISMATCHED, text, MEDIUM, job.waiters)
    if found := _apart_from_a_pipeline(job):
        return replace(found, confidence=LOW)
    one = views[in_cycle[0]]
    other = views[next(edge.awaited[0] for edge in edges if one.rank in edge.waiters)]
    cycle = f"rank {one.rank} {one.activity.text}, and rank {other.rank} {other.activity.text}"
    return _undecided(f"the ranks wait for each other in different collectives: {cycle}", job)


def _apart_from_a_pipeline(job: JobView) -> Verdict | None:
    """One rank is in a collective while all others wait in sends and receives, or the other way round."""
    pipeline = [view for view in job.waiting if view.activity.operation in P2P]
    others = [view for view in job.waiting if view.activity.operation not in P2P]
    if pipeline and len(others) == 1 and job.is_complete:
        numbers, verb = [view.rank for view in pipeline], "waits" if len(pipeline) == 1 else "wait"
        where = pipeline[0].activity.operation if len(pipeline) == 1 else "sends and receives"
        text = f"is in {others[0].activity.operation}, while {ranks(numbers)} {verb} in {where}"
        return against(others[0].evidence, MISMATCHED, text, MEDIUM, job.waiters)
    if len(pipeline) == 1 and others:
        waiter, doing = pipeline[0].rank, pipeline[0].activity
        text = f"rank {waiter} waits in {doing.operation} at {doing.place}; its peer is not recorded"
        return against_nobody(MISMATCHED, text, LOW, job.waiters)
    return None


def _at_another_step(job: JobView) -> Verdict | None:
    steps = {view.rank: view.step for view in job.waiting if view.step is not None}
    off = recorder.odd(steps)
    if len(off) != 1 or _has_p2p(job):
        return None
    culprit = next(view for view in job.waiting if view.rank == off[0])
    mine = steps[off[0]]
    usual = next(step for step in steps.values() if step != mine)
    kind, why = MISSING, "it left out a collective"
    if mine < usual:
        kind, why = MISMATCHED, "it was in a collective in which the others were not"
    text = f"waits in {culprit.activity.operation} at step {mine}, the others at step {usual}: {why}"
    return against(culprit.evidence, kind, text, MEDIUM if abs(mine - usual) > 1 else LOW, job.waiters)


def _at_another_place(job: JobView) -> Verdict | None:
    sure = {view.rank: view for view in job.waiting if view.activity.strength > Strength.WEAK}
    places = {rank: (view.activity.operation, view.activity.place) for rank, view in sure.items()}
    if len(set(places.values())) < 2 or _has_p2p(job) or _are_in_one(job):
        return None
    off = recorder.odd(places)
    if len(off) == 1:
        culprit, other = sure[off[0]], next(view for rank, view in sure.items() if rank != off[0])
        if _went_on(culprit, job):
            return None
        text = f"{culprit.activity.text}, where the others are not: rank {other.rank} {other.activity.text}"
        return against(culprit.evidence, MISMATCHED, text, MEDIUM, job.waiters)
    if len(sure) == 2 and len({operation for operation, _ in places.values()}) == 2:
        both = (f"rank {each.rank} {each.activity.text}" for each in sure.values())
        return _undecided(" and ".join(both), job)
    return None


def _are_in_one(job: JobView) -> bool:
    """Whether the recorder shows that all wait in the same collective, with the same sizes, wherever they called it."""
    entries = [entry for view in job.waiting for entry in waits_in(view)[:1]]
    is_shown = len(entries) == len(job.waiting) and recorder.records_completion(entries)
    return is_shown and len({_key(entry) for entry in entries}) == 1


def _has_p2p(job: JobView) -> bool:
    """In a pipeline the ranks wait at different places and steps by design."""
    return any(view.activity.operation in P2P for view in job.waiting)


_DIFFERENCES: tuple[Callable[[JobView], Verdict | None], ...] = (
    _pair,
    _sink,
    _in_another_collective,
    _in_a_cycle,
    _apart_from_a_pipeline,
    _at_another_step,
    _at_another_place,
)
