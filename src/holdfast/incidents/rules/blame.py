"""Who is to blame: the rules, in their order, the first that applies. Pure.

1. A rank failed by itself: the first one; none where others raised the same at that moment.
2. The launchers lost a node.
3. All ranks move: by their boards, or from one collective to the next.
4. A rank cannot run: stopped, gone, blocked in the kernel.
5. A rank ended with 0 while others wait for it.
6. A rank holds a file lock, or has the other end of a connection, for which others wait.
7. A rank is in no collective, while others wait in one. Of several: the awaited, the motionless, the earliest.
8. No rank waits for another.
9. All wait: one is in another collective, or never came to the one of the others.
10. A rank is at an earlier step; a node sent no evidence; else the evidence does not single out a rank.
Where ranks ended only because they lost a peer, or timed out, the peer counts more than rules 3 to 10.

Confidence is that of the weakest link: an edge or an activity that is only weak never accuses with more than "low".
Does not cover: a network between nodes that lost what was sent; then all wait in the same collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..evidence import Collective, Target
from ..verdict import HIGH, LOW, MEDIUM, Confidence, Kind, Strength, Verdict, Via
from . import recorder
from .differences import difference
from .ended_ranks import early_exit, first_failure, nodes_lost, only_followers
from .graph import LONG, RECENT, JobView, RankView, transfers, waits_in
from .sentence import against, against_nobody, ranks, seconds, wait
from .signatures import is_computing, moves

TIMES = 5.0
"""A silence that counts without a limit is this many times a rank's longest interval, and `LONG`."""
MAKE_GROUPS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group")
"""Functions of torch in which ranks meet that have met before."""
_UNSPECIFIC = (Kind.UNKNOWN, Kind.USER_CODE, Kind.STARTUP)
"""Activities of a healthy rank too; any other is rather the reason."""
_NOTHING = "nothing stands out"


def blame(job: JobView) -> Verdict:
    """The verdict."""
    if not job.ranks:
        text = job.lost_node.text if job.lost_node else "no rank sent any evidence"
        return against_nobody(Kind.NODE_LOST if job.lost_node else Kind.UNKNOWN, text, LOW)
    ends = sorted((view.end for view in job.ranks if view.end), key=lambda end: (end.when, end.rank.rank))
    if failed := first_failure(job, ends):
        return failed
    if job.lost_nodes:
        return nodes_lost(job)
    living = next(found for rule in _RULES if (found := rule(job)) is not None)
    return only_followers(job, ends, living) or living


# -- ranks that run --------------------------------------------------------------------------------------------


def _all_move(job: JobView) -> Verdict | None:
    """All that have not finished make progress: by their boards, or they enter one collective after another."""
    running = [view for view in job.living if not (view.evidence.board and view.evidence.board.finished)]
    cannot_run = any(view.activity.kind in (Kind.STOPPED, Kind.EXIT) for view in job.living)
    if not running or job.failed or cannot_run:
        return None
    what = "the limit is too short, or all are slow" if job.is_suspected else "no rank is blocked"
    who = f"all {len(running)} ranks make" if len(running) > 1 else "the rank makes"
    if all(job.moves(view) for view in running):
        changed = all(view.evidence.board and view.evidence.board.moved for view in running)
        confidence = HIGH if changed and not job.is_suspected else MEDIUM
        return against_nobody(Kind.SLOW, f"{who} progress, by the boards: {what}", confidence)
    entered = [recorder.latest(view.evidence.collectives) for view in running]
    longest = max(entry.ago if entry else float("inf") for entry in entered)
    silent = min(view.evidence.board.silent if view.evidence.board else 0.0 for view in running)
    if job.done or not job.is_suspected or not job.is_complete or longest * RECENT > silent:
        return None
    text = f"each began a collective within the last {seconds(longest)}, without a sign of life for {seconds(silent)}"
    return against_nobody(Kind.SLOW, f"{who} progress: {text}: {what}", MEDIUM)


def _cannot_run(job: JobView) -> Verdict | None:
    for kind in (Kind.STOPPED, Kind.EXIT, Kind.UNINTERRUPTIBLE):
        found = [view for view in job.living if view.activity.kind == kind]
        if kind == Kind.UNINTERRUPTIBLE:
            found = [view for view in found if not moves(view.evidence)]
        if found:
            return _against_those(job, kind, found)
    return None


def _against_those(job: JobView, kind: Kind, found: Sequence[RankView]) -> Verdict:
    numbers = {view.rank for view in found}
    victims = [view.rank for view in (*job.living, *job.failed) if view.rank not in numbers]
    if len(found) > 1 and not victims:
        return against_nobody(kind, f"all {len(found)} ranks: each {found[0].activity.text}", MEDIUM)
    culprit = next((view for view in found if view.rank in job.accused), found[0])
    is_certain = len(found) == 1 and culprit.activity.strength > Strength.WEAK
    confidence = HIGH if is_certain else MEDIUM
    if kind == Kind.UNINTERRUPTIBLE:
        confidence = _bounded(job, confidence, culprit)
    others = f", as do {ranks(numbers - {culprit.rank})}" if len(found) > 1 else ""
    those = f"; {wait(victims)} for it" if victims and job.waiting else ""
    text = f"{culprit.activity.text}{_silence(culprit)}{others}{those}"
    return against(culprit.evidence, kind, text, confidence, victims)


def _ended_early(job: JobView) -> Verdict | None:
    if not job.done or job.outside or not job.waiting:
        return None
    where = job.waiting[0].activity.operation or "a collective"
    if len(job.done) <= len(job.waiting):
        verb = "still waits" if len(job.waiters) == 1 else "still wait"
        found = early_exit(job.done, job.waiters, f"{verb} in {where}")
        # At its end a rank may wait for others, and it need not be for them that it stays.
        is_guess = all(
            view.activity.strength is Strength.WEAK or view.activity.kind == Kind.TEARDOWN
            for view in job.waiting
        )
        return replace(found, confidence=MEDIUM) if is_guess else found
    last = job.waiting[0]
    text = f"waits in {where} for {len(job.done)} ranks that have ended with exit code 0"
    kind = Kind.SHUTDOWN if last.activity.kind == Kind.TEARDOWN else Kind.MISMATCHED_COLLECTIVE
    return against(last.evidence, kind, text, MEDIUM if len(job.waiting) == 1 else LOW, job.waiters)


def _outside(job: JobView) -> Verdict | None:
    """Ranks that wait for no peer, while others do."""
    if not job.outside or not (job.waiters or job.done):
        return None
    held_up = _held_up(job)
    free = [view for view in job.outside if view.rank not in held_up]
    culprit, by_evidence = _chosen(job, free or job.outside)
    doing, is_alone = culprit.activity, len(job.outside) == 1
    kind, text = doing.kind, f"it {doing.text}"
    if doing.strength is Strength.WEAK and (found := _all_wait(job)) is not None and found.rank is not None:
        return found
    waits = max((view.activity.strength for view in job.waiting), default=Strength.STRONG)
    if kind == Kind.UNKNOWN:
        kind, text = Kind.MISSING_COLLECTIVE, "its activity is not known, as there is no stack of it"
        confidence = MEDIUM if is_alone else LOW
    elif doing.strength is Strength.WEAK and _may_wait_for_peer(job, culprit):
        confidence = LOW
    elif culprit.rank in held_up:
        confidence = MEDIUM  # a circle: it waits for a rank that waits for it
    elif doing.strength > Strength.WEAK and is_alone and job.is_complete and waits > Strength.WEAK:
        confidence = HIGH
    else:
        # Where the few ranks that are in no collective are all blocked in the same way, each is a culprit.
        kinds = {view.activity.kind for view in job.outside}
        is_common = len(kinds) == 1 and kind not in _UNSPECIFIC and len(job.outside) < len(job.waiters)
        confidence = MEDIUM if by_evidence or is_common else LOW
    if job.moves(culprit):
        confidence = LOW
    others = [view.rank for view in job.outside if view is not culprit]
    verb = "is" if len(others) == 1 else "are"
    also = f" ({ranks(others)} {verb} in no collective either)" if others else ""
    waiter, entry = _missed(job, culprit)
    number = f" (sequence {entry.sequence})" if entry and not entry.p2p else ""
    meanwhile = f", while {wait(job.waiters)}{number}" if job.waiters else ""
    text = f"{_how_far(job, waiter, entry)}: {text}{_silence(culprit)}{also}{meanwhile}"
    return against(culprit.evidence, kind, text, _bounded(job, confidence, culprit), job.waiters)


def _may_wait_for_peer(job: JobView, culprit: RankView) -> bool:
    """Natively or for its GPU.

    A recorder that shows all it entered as completed proves that it does not, but only NCCL's has sends and receives.
    """
    entries = culprit.evidence.collectives
    is_done = recorder.records_completion(entries) and all(entry.backend == "nccl" for entry in entries)
    is_proven = is_done and culprit.rank in job.sinks(Strength.PROOF)
    return culprit.may_wait_for_gpu or (culprit.activity.kind == Kind.LOCK and not is_proven)


_HELD = {
    Via.LOCK: (Kind.LOCK, "holds the file lock for which"),
    Via.SOCKET: (Kind.NETWORK, "has the other end of the connection on which"),
}


def _held_up(job: JobView) -> set[int]:
    """Ranks that wait for what another rank of their node holds."""
    return {rank for edge in job.edges if edge.via in _HELD for rank in edge.waiters}


def _holder(job: JobView) -> Verdict | None:
    """Of something for which others of its node wait, and that does not wait in the same way itself.

    It may wait in a collective, for those: the far end of a connection, unless another rank is in no collective
    either, and the holder of a file lock for which all other ranks wait.
    """
    living, outside = {view.rank: view for view in job.living}, {view.rank for view in job.outside}
    held_up = _held_up(job)
    for edge in job.edges:
        holder = living.get(edge.awaited[0]) if edge.via in _HELD else None
        is_for_all = edge.via is Via.SOCKET or len(edge.waiters) == len(living) - 1
        may_wait = is_for_all and outside <= held_up
        if holder is None or holder.rank in held_up or not (holder.rank in outside or may_wait):
            continue
        kind, what = _HELD[edge.via]
        if holder.rank in outside and holder.activity.kind != Kind.UNKNOWN:
            kind = holder.activity.kind
        text = f"{what} {wait(edge.waiters)}: it {holder.activity.text}"
        victims = {*job.waiters, *edge.waiters}
        return against(holder.evidence, kind, text, _bounded(job, MEDIUM, holder), victims)
    return None


def _no_rank_waits(job: JobView) -> Verdict | None:
    if job.waiters or not job.outside:
        return None
    outside = job.outside
    still = [view for view in outside if not job.moves(view)]
    busy = [view for view in outside if view.activity.kind == Kind.USER_CODE and is_computing(view.evidence)]
    if len(outside) > 1 and len(busy) == len(outside):
        text = f"no hang found: all {len(outside)} ranks are busy and none is waiting for another"
        # A wait for the GPU is busy too.
        confidence = LOW if any(view.may_wait_for_gpu for view in outside) else MEDIUM
        return against_nobody(Kind.SLOW, f"{text}. The limit may be too short", confidence)
    same = {(view.activity.kind, view.activity.place) for view in outside}
    if len(outside) > 1 and len(same) == 1 and len(still) != 1:
        kind, text = outside[0].activity.kind, outside[0].activity.text
        if kind in (Kind.USER_CODE, Kind.STARTUP) and all(_is_one_moment(job, view) for view in outside):
            text = f"{_NOTHING}: each of {len(outside)} ranks {text}"
            return _behind(job) or against_nobody(Kind.SLOW, text, LOW)
        is_known = kind != Kind.UNKNOWN and not outside[0].is_native_wait
        confidence = MEDIUM if is_known and job.is_suspected else LOW
        return _behind(job) or against_nobody(kind, f"all {len(outside)} ranks: each {text}", confidence)
    pool = still or outside
    if len(pool) > 1 and all(view.is_native_wait for view in pool):
        waits = " and ".join(f"rank {view.rank} {view.activity.text}" for view in pool[:2])
        text = f"{len(pool)} ranks are in native waits, and which one waits for another is not known: {waits}"
        return _behind(job) or against_nobody(Kind.UNKNOWN, text, LOW)
    culprit, by_evidence = _chosen(job, pool)
    if culprit.activity.kind == Kind.UNKNOWN:
        return None
    is_alone, is_weak = len(job.living) == 1, culprit.activity.strength is Strength.WEAK
    is_certain = is_alone and not is_weak and job.is_complete
    narrowed = by_evidence and (len(pool) == 1 or len(pool) < len(outside))
    if is_weak and culprit.may_wait_for_gpu and not is_alone:
        narrowed = False  # nothing shows that the others wait for it
    confidence = _bounded(job, HIGH if is_certain else MEDIUM if narrowed else LOW, culprit)
    text = f"{culprit.activity.text}{_silence(culprit)}"
    return against(culprit.evidence, culprit.activity.kind, text, confidence)


def _all_wait(job: JobView) -> Verdict | None:
    if not job.waiting or any(not view.may_wait_for_gpu for view in job.outside):
        return None
    if len(job.ranks) == 1 and job.is_complete and job.waiting[0].activity.kind == Kind.IN_COLLECTIVE:
        alone = job.waiting[0]
        text = f"{alone.activity.text}, and the job has no other rank: a kernel there does not end"
        return against(alone.evidence, Kind.USER_CODE, text + _silence(alone), _bounded(job, MEDIUM, alone))
    found = difference(job)
    return replace(found, confidence=LOW) if found and not job.is_suspected else found


def _behind(job: JobView) -> Verdict | None:
    """Nothing but the boards: who is behind."""
    steps = {view.rank: view.step for view in job.living if view.step is not None}
    if len(set(steps.values())) < 2:
        return None
    least, next_one = sorted(set(steps.values()))[:2]
    behind = [view for view in job.living if steps.get(view.rank) == least]
    if len(behind) != 1 or behind[0].activity.waits_for_peers:
        return None
    culprit = behind[0]
    text = f"is at step {least}, the others at {next_one} or later{_silence(culprit)}"
    return against(culprit.evidence, Kind.BEHIND, text, _bounded(job, MEDIUM, culprit), set(steps))


def _undetermined(job: JobView) -> Verdict:
    """A node sent no evidence, or the evidence does not single out a rank."""
    all_wait = job.waiting and not job.outside
    first = job.waiting[0] if job.waiting else None
    where = first.activity.operation or "a collective" if first else ""
    if job.lost_node:
        waits = f"{wait(job.waiters)} in {where}; " if all_wait and not job.is_complete else ""
        return against_nobody(Kind.NODE_LOST, f"{waits}{job.lost_node.text}", MEDIUM, job.waiters)
    if not first or not all_wait:
        has_stacks = any(view.evidence.stacks for view in job.living)
        needed = "" if has_stacks else ": stacks or flight-recorder data are needed"
        text = f"the evidence does not single out one of the {len(job.ranks)} ranks{needed}"
        return against_nobody(Kind.UNKNOWN, text, LOW)
    if not job.is_complete:
        count = job.missing_nodes or 1
        nodes = f"the {count} node{'s' if count > 1 else ''} that sent no evidence"
        text = f"{wait(job.waiters)} in {where}; the cause is probably on {nodes}"
        return against_nobody(Kind.ELSEWHERE, text, MEDIUM if job.is_suspected else LOW, job.waiters)
    if all(view.activity.operation in MAKE_GROUPS for view in job.waiting):
        text = f"{wait(job.waiters)} in {where}: one may make other groups, or in another order"
        return against_nobody(Kind.MISMATCHED_COLLECTIVE, text, LOW, job.waiters)
    meeting = [view for view in job.waiting if view.activity.kind == Kind.RENDEZVOUS]
    if meeting:
        where = meeting[0].activity.operation
        others = [view for view in job.waiting if view.activity.kind != Kind.RENDEZVOUS]
        text = f"{wait([view.rank for view in meeting])} in {where}"
        if others and where in MAKE_GROUPS:
            text += f", and {wait([view.rank for view in others])} in {others[0].activity.operation}"
            text += ": the evidence does not show which of them is wrong"
            return against_nobody(Kind.MISMATCHED_COLLECTIVE, text, LOW, job.waiters)
        text += ": the address, port or world size may be wrong"
        return against_nobody(Kind.STARTUP, text, LOW, job.waiters)
    sinks = job.sinks(Strength.STRONG)
    awaited = [entry for view in job.waiting if view.rank in sinks for entry in waits_in(view)[:1]]
    entries = awaited or waits_in(first)
    where = recorder.described(entries[0]) if entries else where
    if awaited and len(at := {recorder.place_of(each) for each in awaited}) == 1:
        first_waits = [(view.rank, entry) for view in job.waiting for entry in waits_in(view)[:1]]
        inside = [rank for rank, entry in first_waits if recorder.place_of(entry) in at]
        text = f"{wait(inside)} in {where}, none of them differs, and others wait for them"
        text += ": their GPUs or the network may be the cause"
        return against_nobody(Kind.UNKNOWN, text, LOW, job.waiters)
    other = next((view for view in job.waiting if view.activity.operation != first.activity.operation), None)
    if other is not None:
        text = f"rank {first.rank} {first.activity.text}, and rank {other.rank} {other.activity.text}"
        text += ": the evidence does not show which is wrong"
        return against_nobody(Kind.UNKNOWN, text, LOW, job.waiters)
    text = f"all {len(job.waiting)} ranks wait in {where} and none differs"
    if all(_is_one_moment(job, view) for view in job.waiting):
        return against_nobody(Kind.SLOW, f"{_NOTHING}: {text}", LOW)
    text += ": the network may be the cause"
    return against_nobody(Kind.UNKNOWN if job.is_suspected else Kind.SLOW, text, LOW, job.waiters)


_RULES: tuple[Callable[[JobView], Verdict | None], ...] = (
    _all_move,
    _cannot_run,
    _ended_early,
    _holder,
    _outside,
    _no_rank_waits,
    _all_wait,
    _behind,
    _undetermined,
)


# -- which one of several --------------------------------------------------------------------------------------


def _chosen(job: JobView, candidates: Sequence[RankView]) -> tuple[RankView, bool]:
    """The likeliest culprit, and whether the evidence singled it out."""
    pool = list(candidates)
    awaited = job.sinks(Strength.STRONG)
    steps = [view.step for view in pool if view.step is not None]
    least = min(steps) if len(steps) == len(pool) else None
    narrowers: tuple[Callable[[RankView], bool], ...] = (
        lambda view: view.rank in awaited,
        lambda view: not job.moves(view),
        lambda view: least is None or view.step == least,
        lambda view: view.activity.kind not in _UNSPECIFIC,
    )
    for narrower in narrowers:
        if len(pool) > 1:
            pool = [view for view in pool if narrower(view)] or pool
    if len(pool) == 1:
        return pool[0], True
    by_limit = [view for view in pool if view.rank in job.accused] or [v for v in pool if v.evidence.passed]
    return (by_limit or pool)[0], len(by_limit) == 1


def _bounded(job: JobView, confidence: Confidence, culprit: RankView) -> Confidence:
    """Without a passed limit a long silence makes it likely, the rest is a guess.

    What a lock within the process is waited for, a thread, a child or another service, is not in the evidence, and the
    far end of a connection may be a rank of another node: such a wait is never certain. The kernel knows the owner of a
    file lock. A busy rank that does not answer may also make one long native call after the other.
    """
    process, kind = culprit.evidence.process, culprit.activity.kind
    owner_is_known = process is not None and process.system_call.target is Target.LOCK
    is_open = (
        (kind == Kind.LOCK and not owner_is_known)
        or (kind == Kind.NETWORK and len({view.evidence.node for view in job.ranks}) > 1)
        or (kind == Kind.GIL and is_computing(culprit.evidence))
    )
    if is_open and confidence == HIGH:
        confidence = MEDIUM
    if job.is_suspected or job.failed:
        return confidence
    return LOW if _is_one_moment(job, culprit) else MEDIUM if confidence == HIGH else confidence


def _is_one_moment(job: JobView, view: RankView) -> bool:
    """Whether two samples are all there is against this rank: no limit is passed, and no silence is long."""
    board = view.evidence.board
    if job.is_suspected or job.failed:
        return False
    if board is None or board.silent >= board.age or job.moves(view):
        return True  # without any sign of life so far, silence means nothing
    rhythms = [each.evidence.board.rhythm for each in job.ranks if each.evidence.board]  # they step together
    return board.silent < max(LONG, TIMES * max(rhythms))


# -- parts of sentences ----------------------------------------------------------------------------------------


def _missed(job: JobView, culprit: RankView) -> tuple[RankView | None, Collective | None]:
    """A rank that waits for the culprit, and in what: the longest wait, as later ones may only follow from it."""
    edges = [edge for edge in job.direct if culprit.rank in edge.awaited]
    waiters = {rank for edge in edges or job.edges if culprit.rank in edge.awaited for rank in edge.waiters}
    waiting = sorted(job.waiting, key=lambda view: view.rank not in waiters)
    found = [
        (view, entry)
        for view in waiting
        if view.rank in waiters
        for entry in (*transfers(view), *waits_in(view))
        if (entry.peer == culprit.rank if entry.p2p else _lacks(culprit, entry))
    ]
    return max(found, key=lambda each: each[1].ago, default=(next(iter(waiting), None), None))


def _lacks(culprit: RankView, entry: Collective) -> bool:
    """Whether the culprit is a member, and has not entered it."""
    is_member = not entry.members or culprit.rank in entry.members
    return is_member and not recorder.reached(culprit.evidence.collectives, entry)


def _how_far(job: JobView, waiter: RankView | None, entry: Collective | None) -> str:
    if waiter is None:
        is_last = job.done and not job.failed
        return "is the last that does not end" if is_last else "did not come to the collective"
    operation = waiter.activity.operation or "collective"
    if entry is not None and entry.p2p:
        counterpart = "receive from" if recorder.is_send(entry) else "send to"
        operation = f"{counterpart} rank {waiter.rank}"
    elif entry is not None and recorder.records_completion([entry]):
        operation = recorder.operation(entry)
    if waiter.activity.kind == Kind.RENDEZVOUS:
        return f"has not come to {operation}"
    is_step = waiter.step is not None and waiter.activity.kind == Kind.IN_COLLECTIVE
    return f"never reached {f'the {operation} of step {waiter.step}' if is_step else f'the {operation}'}"


def _silence(view: RankView) -> str:
    """For how long there was no sign of life, and in which section the rank is."""
    board = view.evidence.board
    if board is None or board.silent < 1.0:
        return ""
    section = f", in section '{board.sections[-1].name}'" if board.sections else ""
    return f" (the rank's last sign of life: {seconds(board.silent)} ago{section})"
