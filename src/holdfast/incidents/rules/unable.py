"""What needs no comparison: every rank moves; one cannot run; one has ended while others wait for it. Pure.

That all move is told by their boards, or by the flight recorder where the boards stand still.

Does not cover: ranks that could run (`hang.py`).
"""

from __future__ import annotations

import math

from ..verdict import HIGH, LOW, MEDIUM, Verdict
from .accusation import against, of_nobody
from .crash import early_exit
from .recorder import latest
from .scene import Seen, alive
from .situation import Situation, how_long
from .whereabouts import PARTING
from .wording import ranks, seconds, wait

RECENT = 10.0
"""A collective that was entered so many times more recently than the last sign of life shows that a rank goes on."""


def all_move(it: Situation) -> Verdict | None:
    stuck = [seen for seen in it.living if seen.doing.kind in ("stopped", "exit")]
    accused = it.scene.accused
    if (
        not it.living
        or stuck
        or it.failed
        or not all(alive(seen, seen.rank in accused) for seen in it.living)
    ):
        return None
    slow = "the limit was too short, or all are slow" if it.scene.suspected else "nothing is wrong with them"
    return of_nobody("slow", f"all {len(it.living)} ranks move, as their boards show: {slow}", MEDIUM)


def all_go_on(it: Situation) -> Verdict | None:
    """All have come to a collective long after the last sign of life of any of them: slow, within one step."""
    if not it.living or it.failed or it.done or not it.scene.suspected or not it.complete:
        return None
    entered = [latest(seen.evidence.collectives) for seen in it.living]
    silent = [seen.evidence.board.silent if seen.evidence.board else 0.0 for seen in it.living]
    longest = max((entry.ago if entry else math.inf for entry in entered), default=math.inf)
    if longest * RECENT > min(silent):
        return None
    said = (
        f"all {len(it.living)} ranks come to one collective after another, the last {seconds(longest)} ago at most, "
        f"without a sign of life for {seconds(min(silent))}: the limit was too short, or all are slow"
    )
    return of_nobody("slow", said, MEDIUM)


def unable(it: Situation) -> Verdict | None:
    for kind in ("stopped", "exit", "uninterruptible"):
        found = [
            seen
            for seen in it.living
            if seen.doing.kind == kind and (kind != "uninterruptible" or not alive(seen))
        ]
        if found:
            return _unable_to_run(it, kind, found)
    return None


def _unable_to_run(it: Situation, kind: str, found: list[Seen]) -> Verdict:
    waiters = [seen.rank for seen in it.living if seen not in found] + it.failed
    if len(found) > 1 and not waiters:
        return of_nobody(kind, f"all {len(found)} ranks: each {found[0].doing.text}", MEDIUM)
    culprit = next((seen for seen in found if seen.rank in it.scene.accused), found[0])
    confidence = HIGH if len(found) == 1 and culprit.doing.clear else MEDIUM
    if kind == "uninterruptible":
        confidence = it.bounded(confidence, culprit)
    others = f", as do {ranks(s.rank for s in found if s is not culprit)}" if len(found) > 1 else ""
    those = f"; {wait(waiters)} for it" if waiters and it.waiting else ""
    return against(
        culprit, kind, f"{culprit.doing.text}{how_long(culprit)}{others}{those}", confidence, waiters
    )


def ended_early(it: Situation) -> Verdict | None:
    if not it.done or it.outside or not it.waiting:
        return None
    if len(it.done) <= len(it.waiting):
        where = it.waiting[0].doing.operation or "a collective"
        verb = "waits" if len(it.waiters) == 1 else "wait"
        return early_exit(it.done, it.waiters, f"still {verb} in {where}")
    last = it.waiting[0]
    where = last.doing.operation or "a collective"
    said = f"waits in {where} for {len(it.done)} ranks that have ended with exit code 0"
    kind = "shutdown" if last.doing.kind == PARTING else "mismatched_collective"
    return against(last, kind, said, MEDIUM if len(it.waiting) == 1 else LOW, it.waiters)
