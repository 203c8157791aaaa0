"""All ranks wait for their peers: who waits in the wrong collective, or has left out one? Pure.

Always holds: the flight recorder goes before the places in the program, these before the steps; the odd one out needs a
majority, and of two ranks only the one that left its own pattern is named.
Does not cover: ranks that all wait in the same collective; then nobody differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..evidence import Collective
from ..verdict import LOW, MEDIUM, Verdict
from .accusation import against, of_nobody
from .frames import function_of
from .recorder import odd, off_its_pattern, said, signature
from .scene import Seen
from .whereabouts import COLLECTIVE, MEETING, PARTING


def all_waiting(waiting: Sequence[Seen]) -> Verdict | None:
    """The verdict where they differ; None where they do not."""
    return (
        _not_met(waiting)
        or _by_recorder(waiting)
        or _gone_ahead(waiting)
        or _by_step(waiting)
        or _by_place(waiting)
    )


def _by_recorder(waiting: Sequence[Seen]) -> Verdict | None:
    groups = Counter(seen.last.group for seen in waiting if seen.last is not None)
    if not groups:
        return None
    group = max(groups, key=lambda name: (groups[name], name))
    inside = {seen.rank: seen for seen in waiting if seen.last is not None and seen.last.group == group}
    entries = {rank: seen.last for rank, seen in inside.items() if seen.last is not None}
    if len(entries) < 2:
        return None
    return _by_sequence(waiting, inside, entries) or _by_signature(waiting, inside, entries)


def _by_sequence(
    waiting: Sequence[Seen], inside: dict[int, Seen], entries: dict[int, Collective]
) -> Verdict | None:
    sequences = {rank: entry.sequence for rank, entry in entries.items()}
    most = max(sequences.values())
    behind = [rank for rank, sequence in sequences.items() if sequence < most]
    if len(behind) != 1 or len(sequences) < 3:
        return None
    culprit, other = inside[behind[0]], next(rank for rank in sequences if sequences[rank] == most)
    mine = entries[culprit.rank]
    theirs = [entry for rank in sorted(inside) if rank != culprit.rank for entry in _same(inside[rank], mine)]
    if theirs and all(signature(entry) != signature(mine) for entry in theirs):
        text = f"is in {said(mine)}, where the others were in {said(theirs[0])}"
        return against(culprit, "mismatched_collective", text, MEDIUM, (seen.rank for seen in waiting))
    text = f"waits in {said(entries[behind[0]])} and never came to {said(entries[other])}, in which the others wait"
    return against(culprit, "missing_collective", text, MEDIUM, (seen.rank for seen in waiting))


def _same(seen: Seen, entry: Collective) -> list[Collective]:
    """What this rank did under the same number, as far as the recorder reaches back."""
    return [
        each
        for each in seen.evidence.collectives
        if (each.group, each.sequence) == (entry.group, entry.sequence)
    ]


def _by_signature(
    waiting: Sequence[Seen], inside: dict[int, Seen], entries: dict[int, Collective]
) -> Verdict | None:
    if len({entry.sequence for entry in entries.values()}) > 1:
        return None
    signatures = {rank: signature(entry) for rank, entry in entries.items()}
    if len(set(signatures.values())) < 2:
        return None
    off, everybody = odd(signatures), [seen.rank for seen in waiting]
    if len(off) != 1:
        off = tuple(rank for rank in sorted(inside) if off_its_pattern(inside[rank].evidence.collectives))
    if len(off) == 1:
        other = next(rank for rank in sorted(entries) if signatures[rank] != signatures[off[0]])
        text = f"is in {said(entries[off[0]])} while rank {other} is in {said(entries[other])}"
        return against(inside[off[0]], "mismatched_collective", text, MEDIUM, everybody)
    one, two = (
        sorted(entries)[0],
        next(r for r in sorted(entries) if signatures[r] != signatures[min(entries)]),
    )
    text = f"rank {one} is in {said(entries[one])} and rank {two} in {said(entries[two])}; which is wrong is not known"
    return of_nobody("mismatched_collective", text, LOW, everybody)


def _not_met(waiting: Sequence[Seen]) -> Verdict | None:
    """A rank that has not reached the store through which all meet, while the others have."""
    meeting = [seen for seen in waiting if seen.doing.kind == MEETING]
    outside = [seen for seen in meeting if _at_the_store(seen)]
    if len(outside) != 1 or len(meeting) < 2:
        return None
    text = "has not reached the store through which all ranks meet, the others have: its address or port may be wrong"
    return against(outside[0], "startup", text, MEDIUM, (seen.rank for seen in waiting))


def _at_the_store(seen: Seen) -> bool:
    frames = [frame for thread in seen.evidence.stacks if thread.main for frame in thread.frames]
    return any(function_of(frame) == "_create_c10d_store" for frame in frames)


def _gone_ahead(waiting: Sequence[Seen]) -> Verdict | None:
    """A rank that waits to part from the others while these are in a collective."""
    parting = [seen for seen in waiting if seen.doing.kind == PARTING]
    others = [seen.rank for seen in waiting if seen.doing.kind == COLLECTIVE]
    if len(parting) != 1 or not others:
        return None
    text = f"is at its end, in {parting[0].doing.operation}, and has left out the collective in which the others wait"
    return against(parting[0], "missing_collective", text, MEDIUM, others)


def _by_step(waiting: Sequence[Seen]) -> Verdict | None:
    steps = {
        seen.rank: board.step for seen in waiting if (board := seen.evidence.board) and board.step is not None
    }
    off = odd(steps)
    if len(off) != 1:
        return None
    culprit = next(seen for seen in waiting if seen.rank == off[0])
    usual = next(step for rank, step in sorted(steps.items()) if rank != off[0] and step != steps[off[0]])
    mine, ahead = steps[off[0]], steps[off[0]] > usual
    kind = "missing_collective" if ahead else "mismatched_collective"
    why = "it has left out a collective" if ahead else "it was in a collective in which the others were not"
    text = f"waits in {culprit.doing.operation} at step {mine}, the others at step {usual}: {why}"
    return against(
        culprit, kind, text, MEDIUM if abs(mine - usual) > 1 else LOW, (seen.rank for seen in waiting)
    )


def _by_place(waiting: Sequence[Seen]) -> Verdict | None:
    places = {seen.rank: (seen.doing.operation, seen.doing.place) for seen in waiting if seen.doing.clear}
    if len(set(places.values())) < 2:
        return None
    off, everybody = odd(places), [seen.rank for seen in waiting]
    if len(off) == 1:
        culprit = next(seen for seen in waiting if seen.rank == off[0])
        other = next(seen for seen in waiting if seen.rank in places and seen.rank != off[0])
        text = f"{culprit.doing.text}, where the others are not: rank {other.rank} {other.doing.text}"
        return against(culprit, "mismatched_collective", text, MEDIUM, everybody)
    if len(places) == 2 and len({operation for operation, _ in places.values()}) == 2:
        one, two = (seen for seen in waiting if seen.rank in places)
        text = f"rank {one.rank} {one.doing.text} and rank {two.rank} {two.doing.text}; which is wrong is not known"
        return of_nobody("mismatched_collective", text, LOW, everybody)
    return None
