"""All ranks wait for their peers: which one is in another collective than the others, or left one out. Pure.

The flight recorder comes first, then the places in the program, then the steps. The odd one out needs a majority; of
two ranks only the one that left its own pattern is named.
Does not cover: ranks that all wait in the same collective, where no rank differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..evidence import Collective
from ..verdict import IN_COLLECTIVE, LOW, MEDIUM, RENDEZVOUS, TEARDOWN, Strength, Verdict
from . import places as P
from . import recorder
from .graph import RECORDED, JobView, RankView, waits_in
from .sentence import against, against_nobody
from .signatures import main_stack

_P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")


def difference(job: JobView) -> Verdict | None:
    """The verdict on ranks of which all wait; None if none differs."""
    return next((found for rule in _DIFFERENCES if (found := rule(job.waiting, job)) is not None), None)


def _not_at_the_store(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """A rank that has not reached the store through which all meet, while the others have."""
    meeting = [view for view in waiting if view.activity.kind == RENDEZVOUS]
    outside = [view for view in meeting if P.STORE in map(P.place_of, main_stack(view.evidence) or ())]
    if len(outside) != 1 or len(meeting) < 2:
        return None
    text = (
        "cannot reach the rendezvous store, although all other ranks can: check MASTER_ADDR and MASTER_PORT"
    )
    return against(outside[0].evidence, "startup", text, MEDIUM, job.waiters)


def _left_out_its_part(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """Sends and receives wait for each other in a chain: the rank at its end is in another collective."""
    views = {view.rank: view for view in waiting}
    peers = {edge.waiters[0]: edge.awaited[0] for edge in job.edges if edge.via == "peer"}
    ends = [(waiter, peer) for waiter, peer in peers.items() if peer not in peers and peer in views]
    if len({peer for _, peer in ends}) != 1:
        return None
    waiter, peer = ends[0]
    operation, culprit = views[waiter].activity.operation, views[peer]
    text = f"is in {culprit.activity.operation}; rank {waiter} waits in {operation} for it"
    return against(culprit.evidence, "mismatched_collective", text, MEDIUM, job.waiters)


def _not_in_the_collective(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """By the flight recorder: a rank for which others wait, and that waits for none in that way."""
    views = {view.rank: view for view in waiting}
    for vias in (("peer", "recorder"), ("gpu",)):
        awaited = [views[rank] for rank in job.awaited(*vias) if rank in views]
        if not awaited:
            continue
        edge = next(edge for edge in job.edges if edge.via in vias and awaited[0].rank in edge.awaited)
        if len(awaited) == 1 and (edge.strength is Strength.PROOF or len(waiting) > 2):
            return _absent(awaited[0], edge.via, job)
        ahead = [views[rank] for rank in edge.waiters if rank in views]
        if len(ahead) == 1 and len(awaited) > 1 and len(waiting) == len(awaited) + 1:
            entry = recorder.latest(ahead[0].evidence.collectives)
            text = f"waits in {recorder.described(entry) if entry else 'a collective'}, to which no other rank came"
            return against(ahead[0].evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    return None


def _absent(culprit: RankView, via: str, job: JobView) -> Verdict:
    other = next(view for view in job.waiting if view is not culprit)
    if culprit.activity.operation in _P2P and via == "recorder":
        return _unmatched(culprit, job)
    entries = sorted(waits_in(culprit), key=lambda entry: -entry.ago)
    theirs = next((entry for view in job.waiting if view is not culprit for entry in waits_in(view)), None)
    where = recorder.described(theirs) if theirs else other.activity.operation
    if via == "gpu":
        text = f"has enqueued {where}, and its GPU has not begun it: an earlier kernel there does not end"
        return against(culprit.evidence, "missing_collective", text, MEDIUM, job.waiters)
    own = [entry for entry in entries if theirs and recorder.group_of(entry) == recorder.group_of(theirs)]
    if own:
        same = [
            each
            for view in job.waiting
            if view is not culprit
            for each in _same(view, own[0].sequence, own[0])
        ]
        if same and all(recorder.signature(each) != recorder.signature(own[0]) for each in same):
            text = (
                f"is in {recorder.described(own[0])}, where the others were in {recorder.described(same[0])}"
            )
            return against(culprit.evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    at = recorder.described(entries[0]) if entries else culprit.activity.operation
    text = f"waits in {at} and never came to {where}, in which the others wait"
    return against(culprit.evidence, "missing_collective", text, MEDIUM, job.waiters)


def _same(view: RankView, sequence: int, entry: Collective) -> list[Collective]:
    group = recorder.group_of(entry)
    return [
        each
        for each in view.evidence.collectives
        if each.sequence == sequence and recorder.group_of(each) == group
    ]


def _unmatched(waiter: RankView, job: JobView) -> Verdict:
    """It waits in a send or receive, so the culprit is its peer, which gloo does not record."""
    others = [view for view in job.waiting if view is not waiter]
    operation = waiter.activity.operation
    if len(others) == 1 and job.is_complete:
        text = f"is in {others[0].activity.operation}; rank {waiter.rank} waits in {operation} for it"
        return against(others[0].evidence, "mismatched_collective", text, MEDIUM, [waiter.rank])
    text = f"rank {waiter.rank} waits in {operation} at {waiter.activity.place}; its peer is not recorded"
    return against_nobody("mismatched_collective", text, LOW, job.waiters)


def _in_another_collective(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """The same number of the same group, and another operation, size or type."""
    groups: dict[recorder.Group, dict[int, Collective]] = {}
    for view in waiting:
        for entry in waits_in(view):
            groups.setdefault(recorder.group_of(entry), {})[view.rank] = entry
    for entries in sorted(groups.values(), key=len, reverse=True):
        signatures = {rank: recorder.signature(entry) for rank, entry in entries.items()}
        is_one_number = len({entry.sequence for entry in entries.values()}) == 1
        if is_one_number and len(set(signatures.values())) > 1:
            return _mismatched(waiting, job, entries, signatures)
    return None


def _mismatched(
    waiting: Sequence[RankView],
    job: JobView,
    entries: Mapping[int, Collective],
    signatures: Mapping[int, tuple[str, str, str]],
) -> Verdict:
    views = {view.rank: view for view in waiting}
    off = recorder.odd(signatures)
    if len(off) != 1:
        off = tuple(
            rank for rank in sorted(entries) if recorder.breaks_its_pattern(views[rank].evidence.collectives)
        )
    one = off[0] if len(off) == 1 else min(entries)
    other = next(rank for rank in sorted(entries) if signatures[rank] != signatures[one])
    mine, theirs = recorder.described(entries[one]), recorder.described(entries[other])
    if mine == theirs:
        mine, theirs = f"{mine} of {entries[one].dtype}", f"{theirs} of {entries[other].dtype}"
    if len(off) == 1:
        text = f"is in {mine} while rank {other} is in {theirs}"
        return against(views[one].evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    text = f"rank {one} is in {mine} and rank {other} in {theirs}; which of them is wrong is not known"
    return against_nobody("mismatched_collective", text, LOW, job.waiters)


def _in_a_cycle(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """Each waits for another one that waits: in other groups, or both ranks of a pair send first.

    The one that left its own pattern is named, else the one for which all others wait.
    """
    edges = [
        edge for edge in job.edges if edge.via in ("peer", "recorder") and edge.strength is Strength.PROOF
    ]
    if not edges or job.awaited(*RECORDED):
        return None
    views = {view.rank: view for view in waiting}
    waiters = {rank for edge in edges for rank in edge.waiters}
    awaited = {rank for edge in edges for rank in edge.awaited}
    in_cycle = sorted(waiters & awaited & views.keys())
    off = [rank for rank in in_cycle if recorder.leaves_its_order(views[rank].evidence.collectives)]
    if len(off) == 1:
        culprit = views[off[0]]
        text = f"{culprit.activity.text}; by its own earlier steps another collective was next"
        return against(culprit.evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    for edge in edges:
        if edge.via == "recorder" and len(edge.awaited) == 1 < len(edge.waiters) == len(waiting) - 1:
            culprit = views[edge.awaited[0]]
            text = f"{culprit.activity.text}, while all others wait for it in another collective"
            return against(culprit.evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    one, other = edges[0].waiters[0], edges[0].awaited[0]
    text = (
        f"the ranks wait for each other in different collectives: rank {one} {views[one].activity.text}, and "
        f"rank {other} {views[other].activity.text}; which of them is wrong is not known"
    )
    return against_nobody("mismatched_collective", text, LOW, job.waiters)


def _at_its_end(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """A rank that destroys its process groups while the others are in a collective."""
    leaving = [view for view in waiting if view.activity.kind == TEARDOWN]
    others = [view.rank for view in waiting if view.activity.kind == IN_COLLECTIVE]
    if len(leaving) != 1 or not others:
        return None
    text = (
        f"is at its end, in {leaving[0].activity.operation}, and never came to the collective of the others"
    )
    return against(leaving[0].evidence, "missing_collective", text, MEDIUM, others)


def _apart_from_a_pipeline(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    """One rank is in a collective while all others wait in sends and receives, or the other way round."""
    pipeline = [view for view in waiting if view.activity.operation in _P2P]
    others = [view for view in waiting if view.activity.operation not in _P2P]
    if len(pipeline) == 1 and others:
        return _unmatched(pipeline[0], job)
    if len(others) != 1 or len(pipeline) < 2 or not job.is_complete:
        return None
    text = f"is in {others[0].activity.operation}, while all others wait in sends and receives"
    return against(others[0].evidence, "mismatched_collective", text, MEDIUM, job.waiters)


def _at_another_step(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    steps = {view.rank: view.step for view in waiting if view.step is not None}
    off = recorder.odd(steps)
    if len(off) != 1 or _has_p2p(waiting):
        return None
    culprit = next(view for view in waiting if view.rank == off[0])
    mine = steps[off[0]]
    usual = next(step for rank, step in sorted(steps.items()) if step != mine)
    kind = "missing_collective" if mine > usual else "mismatched_collective"
    why = (
        "it left out a collective" if mine > usual else "it was in a collective in which the others were not"
    )
    text = f"waits in {culprit.activity.operation} at step {mine}, the others at step {usual}: {why}"
    confidence = MEDIUM if abs(mine - usual) > 1 else LOW
    return against(culprit.evidence, kind, text, confidence, job.waiters)


def _at_another_place(waiting: Sequence[RankView], job: JobView) -> Verdict | None:
    places = {
        view.rank: (view.activity.operation, view.activity.place)
        for view in waiting
        if view.activity.strength > Strength.WEAK
    }
    if len(set(places.values())) < 2 or _has_p2p(waiting):
        return None
    off = recorder.odd(places)
    views = {view.rank: view for view in waiting}
    if len(off) == 1:
        culprit, other = (
            views[off[0]],
            next(view for view in waiting if view.rank in places and view.rank not in off),
        )
        text = f"{culprit.activity.text}, where the others are not: rank {other.rank} {other.activity.text}"
        return against(culprit.evidence, "mismatched_collective", text, MEDIUM, job.waiters)
    if len(places) == 2 and len({operation for operation, _ in places.values()}) == 2:
        one, two = (views[rank] for rank in places)
        text = (
            f"rank {one.rank} {one.activity.text} and rank {two.rank} {two.activity.text}; "
            "which of them is wrong is not known"
        )
        return against_nobody("mismatched_collective", text, LOW, job.waiters)
    return None


def _has_p2p(waiting: Sequence[RankView]) -> bool:
    """In a pipeline the ranks wait at different places and steps by design."""
    return any(view.activity.operation in _P2P for view in waiting)


_DIFFERENCES: tuple[Callable[[Sequence[RankView], JobView], Verdict | None], ...] = (
    _not_at_the_store,
    _left_out_its_part,
    _not_in_the_collective,
    _in_another_collective,
    _in_a_cycle,
    _at_its_end,
    _apart_from_a_pipeline,
    _at_another_step,
    _at_another_place,
)
