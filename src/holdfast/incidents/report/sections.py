"""What a report says below its first lines: sections with a title each, and how much room each is worth. Pure.

Does not cover: how much room there is; `text` shares it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..evidence import Case, Collective, Frame, RankEvidence
from ..verdict import Verdict
from .findings import findings
from .frames import is_own, shortened
from .grouping import counted, grouped, main_thread, named, same_stack
from .heading import culprit_of
from .wording import (
    beside_the_look,
    call,
    collective,
    end_moment,
    ended,
    raised,
    visible,
    visible_lines,
)


@dataclass(frozen=True, slots=True)
class Section:
    """A title and the lines below it."""

    title: str
    lines: tuple[str, ...]
    weight: int
    """Which goes first where room is short: 0 before 1."""
    share: int
    """Lines that it gets before any other gets more than its own."""
    missing: int = 0
    """What was left out already."""


def of(case: Case, verdict: Verdict) -> list[Section]:
    """The sections in the order of the report; some may be empty."""
    culprit = culprit_of(case, verdict)
    found = [*_of_culprit(culprit)] if culprit else []
    found.append(Section("what other ranks do", tuple(_stacks(case, verdict)), 3, 3))
    found.append(
        Section(
            "last collective operation (all_reduce and its like) of each rank",
            tuple(_collectives(case)),
            2,
            4,
        )
    )
    found.append(Section("how ranks ended", tuple(_ends(case, verdict)), 4, 3))
    found.append(Section("facts of the nodes", tuple(_facts(case)), 5, 3))
    found.append(Section("what could not be had", tuple(_gaps(case)), 6, 3))
    return found


def _of_culprit(culprit: RankEvidence) -> Iterator[Section]:
    known = findings(culprit)
    yield Section(f"how we know, of rank {culprit.rank}", tuple(known), 0, 6)
    if culprit.raised and culprit.raised.traceback:
        lines = [line for line in visible_lines(culprit.raised.traceback) if line.strip()]
        yield Section(
            "its traceback, the innermost call last", tuple(lines[-8:]), 1, 8, max(0, len(lines) - 8)
        )
    elif thread := main_thread(culprit):
        by = f", told by {visible(culprit.stacks_from, 30)}" if culprit.stacks_from else ""
        marked = "; > is your own code" if any(is_own(frame) for frame in thread.frames) else ""
        lines = [
            f"  … {shown.left_out} calls"
            if shown.frame is None
            else f"{'>' if shown.own else ' '} {call(shown.frame)}"
            for shown in shortened(thread.frames, 8)
        ]
        yield Section(f"its Python stack, the innermost call first{by}{marked}", tuple(lines), 1, 8)
    yield Section("its other threads that are in your own code", tuple(_threads(culprit)), 2, 3)
    told = set(culprit.raised.traceback.splitlines()) if culprit.raised else set()
    last = [f"| {visible(line, 180)}" for line in culprit.last_lines if line.strip() and line not in told]
    yield Section("the last it wrote to stderr", tuple(last[-6:]), 2, 4, max(0, len(last) - 6))


def _stacks(case: Case, verdict: Verdict) -> Iterator[str]:
    others = [rank for rank in case.ranks if rank.rank != verdict.rank]
    for frames, ranks in grouped(others, same_stack):
        yield f"{counted([rank.rank for rank in ranks])}: {_calls(frames)}"


def _threads(culprit: RankEvidence) -> Iterator[str]:
    """Who of them may have what the main thread waits for: a lock, a batch, a saved checkpoint."""
    main = main_thread(culprit)
    for thread in culprit.stacks:
        if thread is not main and any(is_own(frame) for frame in thread.frames):
            yield f"{visible(thread.name, 40)}: {_calls(thread.frames)}"


def _calls(frames: Sequence[Frame]) -> str:
    """The innermost call, and those of the program's own code that lead there."""
    python = [frame for frame in frames if not frame.native] or list(frames)
    calls = [python[0], *(frame for frame in python[1:] if is_own(frame))][:3]
    return " < ".join(call(frame) for frame in calls)


def _collectives(case: Case) -> Iterator[str]:
    entries = [(rank.rank, entry) for rank in case.ranks for entry in last_of_each_group(rank.collectives)]
    for _, told in grouped(entries, lambda pair: alike(pair[1])):
        longest = max((entry for _, entry in told), key=lambda entry: entry.ago)
        yield f"{counted([rank for rank, _ in told])}: {collective(longest)}"


def last_of_each_group(entries: Sequence[Collective]) -> list[Collective]:
    """Of each process group the entry with the highest number."""
    last: dict[str, Collective] = {}
    for entry in entries:
        if entry.group not in last or entry.sequence >= last[entry.group].sequence:
            last[entry.group] = entry
    return list(last.values())


def alike(entry: Collective) -> tuple[str, int, str, str, str, bool]:
    """A key: the same operation, at the same place in its group's order."""
    return entry.group, entry.sequence, entry.operation, entry.sizes, entry.dtype, entry.state == "completed"


def _ends(case: Case, verdict: Verdict) -> Iterator[str]:
    """Who failed beside the culprit and when: those that merely followed are said to."""
    failed = [
        rank
        for rank in case.ranks
        if rank.rank != verdict.rank and (rank.raised or (rank.exit and not rank.exit.asked))
    ]
    for (what, followed), ranks in grouped(failed, lambda rank: (_end(rank), rank.rank in verdict.followers)):
        first = max(map(end_moment, ranks))
        after = " because of it" if followed else ""
        yield f"{named([rank.rank for rank in ranks])} ended{after} {beside_the_look(first)}: {what}"


def _end(rank: RankEvidence) -> str:
    end = ended(rank.exit) if rank.exit else ""
    return f"{raised(rank.raised)}" + (f" ({end})" if end else "") if rank.raised else end


def _facts(case: Case) -> Iterator[str]:
    several = len(case.nodes) > 1
    for node in case.nodes:
        for note in node.notes:
            yield (f"{visible(node.node, 40)}: " if several else "") + visible(note, 160)


def _gaps(case: Case) -> Iterator[str]:
    if case.missing_nodes > 0:
        whom = "another node" if case.missing_nodes == 1 else f"{case.missing_nodes} other nodes"
        yield f"anything from {whom} of the job: what happened there is not known here"
    for why, ranks in grouped(case.ranks, lambda rank: rank.no_stacks or None):
        yield f"stacks of {counted([rank.rank for rank in ranks])}: {visible(why, 150)}"
    for why, ranks in grouped(case.ranks, lambda rank: rank.no_collectives or None):
        yield f"collective operations of {counted([rank.rank for rank in ranks])}: {visible(why, 140)}"
    blind = [rank.rank for rank in case.ranks if rank.board is None]
    if blind:
        yield f"what {counted(blind)} reported to Holdfast: no board, or it could not be read"
