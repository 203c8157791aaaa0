"""Who ended first, with what, and who merely followed. Pure.

Always holds: a rank that lost its connection or waited in vain is not the cause while another is known; the kernel
closes a dying process's connections before anybody is told of its end (with a GPU, up to ten seconds before), so a
follower may well have failed first.
Does not cover: ranks that live; where only followers ended, `hang.py` looks for whom they had waited.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from ..verdict import HIGH, LOW, MEDIUM, Verdict
from .accusation import against, of_nobody
from .endings import CAUSE, DONE, LOST, TIMED_OUT, End, before, end
from .recorder import odd
from .scene import Scene, Seen
from .wording import ranks

SAME_MOMENT = 0.1
"""Seconds between two ends of one node of which we cannot say which was first."""
CLOCKS = 2.0
"""Seconds by which the clocks of two nodes may differ."""
DYING, DYING_WITH_GPU = 1.0, 10.0
"""Seconds between the end of a process's connections and its own."""
_BARRIER = re.compile(
    r"ranks?:?\s*\[?(\d+(?:\s*,\s*\d+)*)\]?\s+failed to pass monitoredBarrier", re.IGNORECASE
)
_LINE = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)', re.MULTILINE)


def ends_of(scene: Scene) -> list[End]:
    """How ranks ended, the first to fail first."""
    found = [each for each in (end(seen, scene.notes) for seen in scene.ranks) if each is not None]
    return sorted(found, key=lambda each: (each.when, each.rank))


def crash(scene: Scene, ends: Sequence[End]) -> Verdict | None:
    """The verdict where some rank failed by itself; None where all merely followed, obeyed or were done."""
    causes = [each for each in ends if each.role == CAUSE]
    if not causes:
        return None
    mismatched = [each for each in causes if each.kind == "mismatched_collective"]
    if mismatched and mismatched[0] is causes[0]:
        return _mismatch(scene, ends, mismatched)
    return _first(causes, ends)


def _first(causes: Sequence[End], ends: Sequence[End]) -> Verdict:
    first = causes[0]
    followers = [each for each in ends if each is not first and each.role != DONE]
    confidence = _confidence(first, causes, ends)
    after = before(first, causes[1]) if len(causes) > 1 else ""
    followed = f"; {ranks(each.rank for each in followers)} followed" if followers else ""
    doubt = " (others failed at the same moment)" if confidence == MEDIUM and len(causes) > 1 else ""
    said = f"{first.text}{after}{doubt}{followed}"
    return against(first.seen, first.kind, said, confidence, (each.rank for each in followers))


def _confidence(first: End, causes: Sequence[End], ends: Sequence[End]) -> str:
    for other in causes[1:]:
        same_node = other.seen.evidence.node == first.seen.evidence.node
        if other.when - first.when < (SAME_MOMENT if same_node else CLOCKS):
            return MEDIUM
    status = first.seen.evidence.exit.status if first.seen.evidence.exit else 0
    doubt = DYING_WITH_GPU if status == -signal.SIGKILL else DYING
    earlier = [each for each in ends if each.role in (LOST, TIMED_OUT) and first.when - each.when > doubt]
    return MEDIUM if earlier else first.confidence


def _mismatch(scene: Scene, ends: Sequence[End], raisers: Sequence[End]) -> Verdict:
    """Its message names the collective's other end, not the one that is wrong: that is the one at another line."""
    lines = {each.rank: found[-1] for each in ends if (found := _own_lines(each))}
    off = odd(lines)
    whom = next((each for each in ends if each.rank in off), None) if len(off) == 1 else None
    culprit, confidence = (whom.seen, MEDIUM) if whom else (raisers[0].seen, LOW)
    how = f", at {':'.join(lines[culprit.rank][:2])} where the others are not" if whom else ""
    said = f"was in another collective than its peers, or with other sizes{how}: {raisers[0].text}"
    return against(culprit, "mismatched_collective", said, confidence, (each.rank for each in ends))


def _own_lines(each: End) -> list[tuple[str, str, str]]:
    raised = each.seen.evidence.raised
    found = _LINE.findall(raised.traceback) if raised else []
    return [line for line in found if "site-packages" not in line[0] and "/lib/python" not in line[0]]


def followed_only(scene: Scene, ends: Sequence[End], hang: Verdict) -> Verdict | None:
    """Where all that ended followed: whom they had waited for, by what the living do (`hang`) or by who is done."""
    failed = [each for each in ends if each.role in (LOST, TIMED_OUT)]
    if not failed:
        return None
    numbers = [each.rank for each in failed]
    early = [each for each in ends if each.role == DONE and each.seen.rank not in numbers]
    named = _named_by_barrier(scene, failed)
    if named is not None:
        known = hang if hang.rank == named.rank else None
        kind, what = (known.kind, known.sentence) if known else ("missing_collective", "why is not known")
        said = f"did not come to the barrier, as torch says; {what}"
        return against(named, kind, said, known.confidence if known else MEDIUM, numbers)
    if early and len(early) <= max(1, len(failed)):
        return early_exit(early, numbers, "lost their connection to it")
    if hang.rank is not None and hang.rank not in numbers:
        return replace(hang, followers=tuple(sorted({*hang.followers, *numbers} - {hang.rank})))
    if scene.lost_node or scene.missing_nodes or scene.unseen:
        kind = "node_lost" if scene.lost_node else "elsewhere"
        why = scene.lost_node or "all that failed here lost a peer, and another node has told nothing"
        return of_nobody(kind, f"{ranks(numbers)} only followed: {why}", MEDIUM, numbers)
    first = failed[0]
    said = f"{first.text}; whom it lost or waited for is not known"
    kind = "exception" if first.seen.evidence.raised else "exit"
    return against(first.seen, kind, said, LOW, numbers)


def early_exit(early: Sequence[End], waiting: Sequence[int], how: str) -> Verdict:
    """A rank that ended with 0 while the others were not done."""
    first = early[0]
    verb = how.replace("their", "its") if len(set(waiting)) == 1 else how
    said = f"ended with exit code 0 while {ranks(waiting)} {verb}"
    return against(first.seen, "early_exit", said, HIGH if len(early) == 1 else MEDIUM, waiting)


def _named_by_barrier(scene: Scene, failed: Sequence[End]) -> Seen | None:
    for each in failed:
        raised = each.seen.evidence.raised
        found = _BARRIER.search(raised.message) if raised else None
        numbers = {int(number) for number in found[1].split(",") if len(number) < 9} if found else set()
        if len(numbers) == 1:
            return next((seen for seen in scene.ranks if seen.rank in numbers), None)
    return None
