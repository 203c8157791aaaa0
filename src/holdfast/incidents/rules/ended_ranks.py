"""Who is to blame among ranks that ended: the first that failed by itself, else the one that the others awaited. Pure.

Does not cover: ranks that run (`blame`), and how one rank's end is read (`exits`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from ..classify import DYING, DYING_WITH_GPU
from ..evidence import Nature
from ..verdict import HIGH, LOW, MEDIUM, Kind, Strength, Verdict
from . import recorder
from .exits import COLLATERAL, End, Role, exception
from .graph import LONG, JobView, RankView
from .places import is_own
from .sentence import against, against_nobody, called, ranks, seconds, short

SAME_MOMENT = 0.1
"""Seconds between two ends of one node whose order is not known."""


def first_failure(job: JobView, ends: Sequence[End]) -> Verdict | None:
    causes = [end for end in ends if end.role is Role.CAUSE]
    if not causes:
        return None
    if causes[0].kind == Kind.MISMATCHED_COLLECTIVE:
        return _mismatch(ends, causes[0])
    first = causes[0]
    rivals = [
        other
        for other in causes[1:]
        if other.when - first.when < (SAME_MOMENT if first.rank.node == other.rank.node else job.clocks)
    ]
    if rivals and first.rank.rank not in job.accused:
        # Clocks do not decide: the launcher of its node saw this one fail before anything was reported to it.
        first = next((other for other in rivals if other.rank.rank in job.accused), first)
        rivals = [other for other in causes if other is not first]
    victims = [end.rank.rank for end in ends if end is not first and end.role is not Role.DONE]
    common = _in_common(first)
    alike = [end for end in causes if _in_common(end) == common]
    if rivals and all(_in_common(rival) == common for rival in rivals):
        numbers = [end.rank.rank for end in alike]
        followers = sorted({first.rank.rank, *victims} - {*numbers})
        followed = f"; {ranks(followers)} followed" if followers else ""
        return against_nobody(first.kind, f"{ranks(numbers)} each {first.text}{followed}", MEDIUM, followers)
    confidence = MEDIUM if rivals else first.confidence
    dying = DYING_WITH_GPU if first.rank.exit and first.rank.exit.status == -signal.SIGKILL else DYING
    if any(end.role in COLLATERAL and first.when - end.when > dying for end in ends):
        confidence = MEDIUM
    later = min(
        (end.when for end in causes if end is not first and end.when > first.when), default=first.when
    )
    after = f", {seconds(later - first.when)} before the next" if later > first.when and not rivals else ""
    doubt = " (others failed at the same moment)" if rivals else ""
    followed = f"; {ranks(victims)} followed" if victims else ""
    return against(first.rank, first.kind, f"{first.text}{after}{doubt}{followed}", confidence, victims)


def _in_common(end: End) -> tuple[str, int]:
    """What other ranks have in common that ended for the same reason: an exception, or a signal from outside; no other
    rank has the rest in common."""
    if end.rank.raised and end.rank.raised.nature in (Nature.OWN, Nature.INTERRUPTED):
        return exception(end.rank.raised), 0
    status = end.rank.exit.status if end.rank.exit else 0
    is_from_outside = end.kind == Kind.SIGNAL and -status in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return ("", status) if is_from_outside else ("rank", end.rank.rank)


def _mismatch(ends: Sequence[End], first: End) -> Verdict:
    """The message names the collective's other end, not the rank that is wrong: that is the one at another line."""
    lines = {
        end.rank.rank: own
        for end in ends
        if end.rank.raised and (own := next(filter(is_own, end.rank.raised.frames), None))
    }
    off = recorder.odd(lines)
    culprit = next((end for end in ends if end.rank.rank in off), None) if len(off) == 1 else None
    at = f", at {called(lines[culprit.rank.rank])} where the others are not" if culprit else ""
    text = f"was in another collective than its peers, or with other sizes{at}: {first.text}"
    victims = [end.rank.rank for end in ends]
    return against(
        (culprit or first).rank, Kind.MISMATCHED_COLLECTIVE, text, MEDIUM if culprit else LOW, victims
    )


def nodes_lost(job: JobView) -> Verdict:
    several = len(job.lost_nodes) > 1
    names = short(", ".join(job.lost_nodes), 120)
    text = (
        f"Node{'s' if several else ''} {names} {'are' if several else 'is'} lost: the launcher there sent no sign of "
        "life, and the ranks of the other nodes made no progress"
    )
    return against_nobody(Kind.NODE_LOST, text, HIGH, [view.rank for view in job.ranks], job.lost_nodes[0])


def only_followers(job: JobView, ends: Sequence[End], living: Verdict) -> Verdict | None:
    """All that ended lost a peer, or timed out: the culprit is the one for which they had waited."""
    failed = [end for end in ends if end.role in COLLATERAL]
    if not failed:
        return None
    numbers = [end.rank.rank for end in failed]
    absent = {rank for end in failed if end.rank.raised for rank in end.rank.raised.absent}
    named = next((view for view in job.ranks if {view.rank} == absent), None)
    if named is not None:
        known = living if living.rank == named.rank else None
        text = f"did not come to the barrier, as torch reports; {named.activity.text or 'its activity is not known'}"
        is_outside = named in job.outside and named.activity.strength > Strength.WEAK
        kind, confidence = named.activity.kind if is_outside else Kind.MISSING_COLLECTIVE, MEDIUM
        if known:
            kind, confidence = known.kind, known.confidence
        return against(named.evidence, kind, text, confidence, numbers)
    early = [view for view in job.done if view.rank not in numbers]
    if early and len(early) <= len(failed):
        found = early_exit(early, numbers, "lost their connection to it")
        # A lost connection is noticed when it is next used; long after its end the rank may be needed by none.
        ended = max((view.end.when for view in early if view.end), default=float("-inf"))
        is_recent = min(end.when for end in failed) - ended <= LONG
        return found if is_recent else replace(found, confidence=MEDIUM)
    # A rank that runs has not closed its connections: with a node unseen, the peer that was lost is rather there.
    is_closed = all(end.role is Role.LOST_PEER for end in failed) and not job.is_complete
    if living.rank is not None and living.rank not in numbers and not is_closed:
        return replace(living, followers=tuple(sorted({*living.followers, *numbers} - {living.rank})))
    if job.lost_node or not job.is_complete:
        kind = Kind.NODE_LOST if job.lost_node else Kind.ELSEWHERE
        why = job.lost_node.text if job.lost_node else "the cause is probably on a node that sent no evidence"
        return against_nobody(kind, f"{ranks(numbers)} only followed: {why}", MEDIUM, numbers)
    late = [end for end in failed if end.role is Role.LOST_PEER]
    if len(late) == 1 and 2 < len(failed) == len(job.ranks) and late[0] is failed[-1]:
        text = (
            f"lost its peers after all of them had timed out, as if they had waited for it: it {late[0].text}"
        )
        return against(late[0].rank, Kind.MISSING_COLLECTIVE, text, LOW, numbers)
    first = failed[0]
    if len(failed) == len(job.ranks) > 1:
        text = f"{ranks(numbers)} each lost a peer or timed out, and none shows why; rank {first.rank.rank} was first"
        return against_nobody(Kind.UNKNOWN, text, LOW, numbers)
    kind = Kind.EXCEPTION if first.rank.raised else Kind.EXIT
    return against(first.rank, kind, f"{first.text}; which peer is unknown", LOW, numbers)


def early_exit(early: Sequence[RankView], waiting: Sequence[int], how: str) -> Verdict:
    verb = how.replace("their", "its") if len(set(waiting)) == 1 else how
    text = f"ended with exit code 0 while {ranks(waiting)} {verb}"
    return against(early[0].evidence, Kind.EARLY_EXIT, text, HIGH if len(early) == 1 else MEDIUM, waiting)
