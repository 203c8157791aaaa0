"""Nobody has failed: for whom do the others wait, and what does it do? Pure.

The rules, the first that applies: every rank moves; one is stopped, gone, or sits in the kernel; all come to further
collectives; one ended with 0 while others wait; those that wait for nobody, while others wait in a collective; nobody
waits; all wait, in different collectives or at different places; all wait and a node is missing. Otherwise the evidence
does not tell, which is said.

Always holds: a rank that only waits for its peers is not to blame while another does something else.
Does not cover: a network between nodes that lost what was sent; then all wait in the same collective, and it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..verdict import HIGH, LOW, MEDIUM, Verdict
from .accusation import against, of_nobody
from .choice import chosen, holder_of_the_lock
from .collectives import all_waiting
from .endings import End
from .scene import Scene, Seen, alive
from .situation import Situation, how_far, how_long, meanwhile
from .unable import all_go_on, all_move, ended_early, unable
from .unseen import cannot_tell, elsewhere
from .whereabouts import UNKNOWN
from .wording import ranks, wait


def hang(scene: Scene, ends: Sequence[End]) -> Verdict:
    """The verdict on ranks that live."""
    situation = Situation(scene, ends)
    for rule in _RULES:
        found = rule(situation)
        if found is not None:
            return found
    return cannot_tell(situation)


def _outside(it: Situation) -> Verdict | None:
    if not it.outside or not (it.waiters or it.done):
        return None
    lock = holder_of_the_lock(it.outside, it.living)
    if lock is not None:
        said = f"holds the file lock for which {wait(seen.rank for seen in lock[1])}: it {lock[0].doing.text}"
        return against(lock[0], "lock", said, it.bounded(MEDIUM, lock[0]), it.waiters)
    culprit, sure = chosen(it.outside, it.waiting, it.scene.accused)
    doing, alone = culprit.doing, len(it.outside) == 1
    if doing.kind == UNKNOWN:
        return _missing(it, culprit, alone)
    known = not it.waiting or any(seen.doing.clear for seen in it.waiting)
    certain = alone and doing.clear and known and it.complete
    confidence = it.bounded(HIGH if certain else MEDIUM if sure else LOW, culprit)
    others = [seen.rank for seen in it.outside if seen is not culprit]
    also = f" ({ranks(others)} {'is' if len(others) == 1 else 'are'} elsewhere too)" if others else ""
    return against(
        culprit,
        doing.kind,
        f"{how_far(it)}: it {doing.text}{how_long(culprit)}{also}{meanwhile(it)}",
        confidence,
        it.waiters,
    )


def _missing(it: Situation, culprit: Seen, alone: bool) -> Verdict:
    """What it does is not known; whether it is behind at least is."""
    steps = [board.step for seen in it.waiting if (board := seen.evidence.board) and board.step is not None]
    board = culprit.evidence.board
    step = board.step if board else None
    why = culprit.evidence.no_stacks or "there is no stack of it"
    if not alone and step is not None and steps and step < min(steps):
        said = f"is at step {step}, the others at {min(steps)}; what it does is not known: {why}"
        return against(culprit, "behind", said, it.bounded(MEDIUM, culprit), it.waiters)
    said = f"{how_far(it)}, and why is not known ({why}){how_long(culprit)}{meanwhile(it)}"
    return against(
        culprit, "missing_collective", said, it.bounded(MEDIUM if alone else LOW, culprit), it.waiters
    )


def _nobody_waits(it: Situation) -> Verdict | None:
    if it.waiters or not it.outside:
        return None
    busy = [seen for seen in it.outside if seen.doing.kind == "user_code" and "computes" in seen.doing.text]
    if len(it.outside) > 1 and len(busy) == len(it.outside):
        return of_nobody(
            "slow", f"all {len(busy)} ranks compute, none waits for another: they may only be slow", MEDIUM
        )
    kinds = {(seen.doing.kind, seen.doing.place) for seen in it.outside}
    still = [seen for seen in it.outside if not alive(seen, seen.rank in it.scene.accused)]
    if len(it.outside) > 1 and len(kinds) == 1 and len(still) != 1:
        kind, text = it.outside[0].doing.kind, it.outside[0].doing.text
        confidence = MEDIUM if kind != UNKNOWN and it.scene.suspected else LOW
        return _steps(it) or of_nobody(
            kind, f"all {len(it.outside)} ranks do the same: each {text}", confidence
        )
    pool = still or it.outside
    culprit, sure = chosen(pool, [], it.scene.accused)
    if culprit.doing.kind == UNKNOWN:
        return None
    certain = len(it.living) == 1 and culprit.doing.clear and it.complete
    confidence = it.bounded(
        HIGH if certain else MEDIUM if sure and len(pool) < len(it.outside) + (len(pool) == 1) else LOW,
        culprit,
    )
    return against(culprit, culprit.doing.kind, f"{culprit.doing.text}{how_long(culprit)}", confidence)


def _steps(it: Situation) -> Verdict | None:
    """Nothing but the boards: who is behind."""
    steps = {
        seen.rank: board.step
        for seen in it.living
        if (board := seen.evidence.board) and board.step is not None
    }
    if len(steps) < 2 or len(set(steps.values())) < 2:
        return None
    least = min(steps.values())
    behind = [seen for seen in it.living if steps.get(seen.rank) == least]
    if len(behind) != 1 or behind[0].waits:
        return None
    said = (
        f"is at step {least}, the others at {min(step for step in steps.values() if step > least)} or later"
    )
    return against(behind[0], "behind", said + how_long(behind[0]), it.bounded(MEDIUM, behind[0]), set(steps))


def _all_wait(it: Situation) -> Verdict | None:
    if it.outside or not it.waiting:
        return None
    found = all_waiting(it.waiting)
    if found is not None:
        return found if it.scene.suspected else _weaker(found)
    return None


def _weaker(verdict: Verdict) -> Verdict:
    return Verdict(verdict.kind, verdict.sentence, LOW, verdict.rank, verdict.node, verdict.followers)


_RULES: tuple[Callable[[Situation], Verdict | None], ...] = (
    all_move,
    unable,
    all_go_on,
    ended_early,
    _outside,
    _nobody_waits,
    _all_wait,
    elsewhere,
    _steps,
)
