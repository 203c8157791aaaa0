"""report.txt: an incident for a person, in at most `MOST` lines whatever happened.

The first line has the rank, its node, since when, its activity and the most important step; the next ones all steps,
the verdict and the other ranks. The rest is the evidence. All of it renders one `Judgement`: nothing is decided here.
Pure.
What always holds: no line is longer than `LONGEST` columns or has a character that a terminal acts on; what does not
fit is counted, and is in incident.json.
Does not cover: everything that is known (incident.json).
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from ..evidence import AT_EXIT, CRASH, DIAGNOSE, EARLY, Case, Frame, RankEvidence, Thread
from ..rules.places import is_own
from ..rules.sentence import LONGEST_TIME, seconds
from ..verdict import Activity, Edge, Judgement, Kind, Verdict
from .next_steps import next_step, short_step
from .wording import (
    LONGEST,
    around_snapshot,
    call,
    clock,
    collective,
    counted,
    end_moment,
    end_of,
    evidence_lines,
    grouped,
    operation,
    passed,
    same_collectives,
    state,
    step,
    visible,
    visible_lines,
)

MOST = 40
"""Lines at most."""
GROUPS = 3
"""Groups of other ranks in the first lines."""
WIDTH = 120
"""Columns at which sentences are broken."""

FIRST_WORDS = MappingProxyType(
    {
        Kind.EXCEPTION: "EXCEPTION",
        Kind.EXIT: "EXIT",
        Kind.EARLY_EXIT: "EXIT",
        Kind.SIGNAL: "CRASH",
        Kind.OUT_OF_MEMORY: "OUT OF MEMORY",
        Kind.NODE_LOST: "NODE LOST",
    }
)
"""Of an incident with this kind of verdict; any other is a hang."""


class IncidentView:
    """A case and its judgement, by rank."""

    def __init__(self, case: Case, judgement: Judgement) -> None:
        self.case, self.verdict, self.edges = case, judgement.verdict, judgement.edges
        self.activities = {activity.rank: activity for activity in judgement.activities}
        self.ranks = {rank.rank: rank for rank in case.ranks}
        self.triggers = {node.trigger for node in case.nodes}
        self.alike = self._alike()
        """Where no single rank is to blame: the ranks that do what the verdict is about."""
        number = self.alike[0] if self.alike else self.verdict.rank
        self.culprit = None if number is None else self.ranks.get(number)
        """Of several that are alike, the first."""
        self.activity = None if number is None else self.activities.get(number)
        self.others = [rank for rank in case.ranks if rank.rank != number]

    def _alike(self) -> list[int]:
        verdict = self.verdict
        if verdict.rank is not None or verdict.pair:
            return []
        kind = Kind.FAILED if verdict.kind == Kind.EXCEPTION else verdict.kind
        alike = [rank for rank, activity in sorted(self.activities.items()) if activity.kind == kind]
        return [rank for rank in alike if rank not in verdict.followers]

    @property
    def title(self) -> str:
        """`HANG: rank 5 (node gpu-12)`."""
        return f"{self._word()}: {counted(self.alike) or _whom(self.verdict)}"

    def _word(self) -> str:
        if self.verdict.kind in FIRST_WORDS:
            return FIRST_WORDS[self.verdict.kind]
        if self.triggers == {DIAGNOSE}:
            return "DIAGNOSIS"
        if EARLY in self.triggers:
            return "HANG BEFORE ITS TIMEOUT"
        if AT_EXIT in self.triggers:
            return "HANG AT ITS EXIT"
        has_failed = self.culprit is not None and (self.culprit.raised or self.culprit.exit)
        is_failure = has_failed or self.verdict.kind == Kind.UNKNOWN
        return "FAILED" if CRASH in self.triggers and is_failure else "HANG"

    def headline(self) -> str:
        """Who, where, since when, in what, and what to do next; at most `LONGEST` characters."""
        if self.activity is None:
            at = clock(min((node.at for node in self.case.nodes), default=0.0))
            when, what = f"detected at {at}" if at else "", self.verdict.kind.text
        else:
            node = self.culprit.node if self.culprit else self.verdict.node
            captured = next((each.at for each in self.case.nodes if each.node == node), 0.0)
            when = since_when(self.culprit, self.activity, captured) if self.culprit else ""
            what = f"{'each ' if len(self.alike) > 1 else ''}{self.activity.text}"
        who, step = f"{self.title}{f', {when}' if when else ''}: ", short_step(self)
        todo = f". Next: {step}" if step else ""
        room = max(LONGEST - len(who) - len(todo), 40)
        if len(what) > room:
            what = re.split(r"[,;] ", what)[0]  # the verdict has the rest
        return visible(who + visible(what, room) + todo)

    def facts(self, number: int) -> Iterator[str]:
        """`incident 0003`, `2026-11-22 03:10:07 UTC`, `job pretrain`, `cycle 2`: what is known of these."""
        if number:
            yield f"incident {number:04d}"
        if first := clock(min((node.at for node in self.case.nodes), default=0.0), "%Y-%m-%d %H:%M:%S UTC"):
            yield first
        if run := next((node.run_id for node in self.case.nodes if node.run_id), ""):
            yield f"job {visible(run, 40)}"
        yield f"cycle {max((node.cycle for node in self.case.nodes), default=0)}"

    def waits(self) -> list[str]:
        """Who waits for the culprit, and what shows it."""
        edges = [edge for edge in self.edges if self.verdict.rank in edge.awaited and edge.via.text]
        return [self.edge_line(edge) for edge in edges[:3]]

    def edge_line(self, edge: Edge) -> str:
        """`3 ranks (0-2) wait for rank 3 in all_reduce (sequence 7), shown by the flight recorder (proof)`."""
        activity = self.activities.get(edge.waiters[0]) if edge.waiters else None
        where = f" in {operation(activity)}" if activity and activity.waits_for_peers else ""
        verb = "waits" if len(set(edge.waiters)) == 1 else "wait"
        awaited = counted(edge.awaited) or "a rank without evidence"
        shown = f"{edge.via.text or edge.via} ({edge.strength.name.lower()})"
        return f"{counted(edge.waiters)} {verb} for {awaited}{where}, shown by {shown}"


def since_when(rank: RankEvidence, activity: Activity, at: float) -> str:
    """`since 03:09:36 UTC (31 s)`, `at 03:10:07 UTC`; empty where it is not known."""
    if activity.kind in (Kind.FAILED, Kind.FINISHED):
        moment = clock(at - end_moment(rank))
        return f"at {moment}" if moment else ""
    entered = [
        each.ago
        for each in rank.collectives
        if each.sequence == activity.sequence and activity.group in ("", each.group)
    ]
    if activity.sequence is not None and entered:
        ago = max(entered)
    elif rank.board is not None and not activity.moves:
        ago = rank.board.silent
    else:
        return ""
    moment = clock(at - ago)
    return f"since {moment} ({seconds(ago)})" if moment else f"for {seconds(ago)}"


# -- the report ------------------------------------------------------------------------------------------------


def report_lines(case: Case, judgement: Judgement, *, number: int = 0, folder: str = "") -> list[str]:
    """The report. `folder` is where it is stored, if it is; `number` is the folder's."""
    view = IncidentView(case, judgement)
    head = head_lines(view)
    foot = list(_foot(view, number, folder))
    body = fitted([found for found in sections(view) if found.lines], MOST - len(head) - len(foot))
    return [*map(_cut, (*head, *body)), *foot]


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else line[: LONGEST - 2] + " …"


def head_lines(view: IncidentView) -> list[str]:
    """The block that a person reads first: who, since when, in what, the next step; then all steps, and why."""
    sentence = f"Verdict (confidence {view.verdict.confidence}): {visible(view.verdict.sentence, 600)}"
    lines = [*_wrapped(f"Next step: {next_step(view)}")[:3], *_wrapped(sentence)[:5]]
    where = (f"  {line}" for line in (*_detected(view), *where_lines(view, GROUPS)))
    return [view.headline(), *lines, *where]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _detected(view: IncidentView) -> Iterator[str]:
    """The culprit's own timeout, else that of the rank that was acted on, else the launcher's reason."""
    accused = {node.accused for node in view.case.nodes}
    late = [rank for rank in view.case.ranks if rank.passed]
    late.sort(key=lambda rank: (rank.rank != view.verdict.rank, rank.rank not in accused))
    if late and late[0].passed:
        owner = "" if late[0].rank == view.verdict.rank else f" of rank {late[0].rank}"
        yield f"Detected by a timeout{owner}: {passed(late[0].passed)}"
    elif not (view.culprit and (view.culprit.raised or view.culprit.exit)):
        reasons = [visible(node.reason, 150) for node in view.case.nodes if node.reason]
        yield from (f"Detected: {reason}" for reason in reasons[:1])


def where_lines(view: IncidentView, most: int) -> Iterator[str]:
    """The culprit's sections, state and step; then the other ranks, those with the same activity in one line."""
    if view.culprit:
        sections = view.culprit.board.sections if view.culprit.board else ()
        names = [visible(each.name, 40) for each in sections]
        place = visible(view.activity.place, 100) if view.activity else ""
        parts = [" > ".join([*names, *([place] if place else [])]), state(view.culprit), step(view.culprit)]
        if text := ", ".join(part for part in parts if part):
            yield f"Rank {view.culprit.rank}: {text}"
    found = grouped(view.others, lambda rank: _same_activity(view, rank))
    for (text, at), ranks in found[:most]:
        each = "each " if len(ranks) > 1 else ""
        line = f"{counted([rank.rank for rank in ranks])}: {each}{text}{at}"
        yield line[:1].upper() + line[1:]
    if left := [rank.rank for _, ranks in found[most:] for rank in ranks]:
        yield f"{counted(left)}: {len(found) - most} other activities"


def _same_activity(view: IncidentView, rank: RankEvidence) -> tuple[str, str] | None:
    """Words for a group of ranks: its activity, and the rest of the line."""
    activity = view.activities.get(rank.rank)
    if activity is None:
        return None
    at = f", {text}" if (text := step(rank)) else ""
    if activity.waits_for_peers:
        place = f" at {visible(activity.place, 100)}" if activity.place else ""
        return f"waits in {operation(activity)}{place}", at
    return visible(activity.text, 130) or activity.kind, at


def _foot(view: IncidentView, number: int, folder: str) -> Iterator[str]:
    took = max(0.0, min(max((node.took for node in view.case.nodes), default=0.0), LONGEST_TIME))
    living = view.ranks and not any(rank.exit and rank.exit.ago >= 0 for rank in view.ranks.values())
    before = ", before any process was terminated" if living and view.triggers != {DIAGNOSE} else ""
    yield f"  Evidence captured in {took:.2f} s{before}; {', '.join(view.facts(number))}"
    if folder:
        path = visible(folder, 1000)
        yield f"  All evidence: {path}/incident.json"
        yield f"  As a page:    holdfast incidents {shlex.quote(visible(folder, 1000))} --html incident.html"


def rejudged_lines(then: Judgement, now: Judgement, *, number: int = 0) -> list[str]:
    """What the rules of this version change in a stored judgement."""
    before, after = then.verdict, now.verdict
    facts = {
        "culprit": (_whom(before), _whom(after)),
        "kind": (before.kind, after.kind),
        "confidence": (before.confidence, after.confidence),
        "victims": (counted(before.followers) or "none", counted(after.followers) or "none"),
    }
    changes = [f"{name} {old} -> {new}" for name, (old, new) in facts.items() if old != new]
    which = f"Incident {number:04d}" if number else "The incident"
    lines = [f"{which}: {'changed: ' + '; '.join(changes) if changes else 'same verdict'}"]
    for word, verdict in (("Then", before), ("Now", after)):
        what = f"{word} ({verdict.kind}, confidence {verdict.confidence})"
        lines += _wrapped(f"{what}: {visible(verdict.sentence, 600)}")
    old = {activity.rank: activity for activity in then.activities}
    moved = [new for new in now.activities if new.rank in old and old[new.rank].kind != new.kind]
    found = grouped(moved, lambda new: (old[new.rank].kind, new.kind))
    if found:
        lines.append("  Activities that changed:")
    for (kind, new_kind), group in found[:MOST]:
        lines.append(f"    {counted([activity.rank for activity in group])}: {kind} -> {new_kind}")
    return [*map(_cut, lines)]


def _whom(verdict: Verdict) -> str:
    """`rank 5 (node gpu-12)`, `node gpu-12`, `no single rank`."""
    node = f"node {visible(verdict.node, 60)}" if verdict.node else ""
    if verdict.pair:
        return f"ranks {' and '.join(map(str, verdict.pair))}, or the link between them"
    if verdict.rank is None:
        return node or "no single rank"
    return f"rank {verdict.rank}" + (f" ({node})" if node else "")


# -- sections --------------------------------------------------------------------------------------------------


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
    """Lines that were left out already."""


def sections(view: IncidentView) -> Iterator[Section]:
    """In the order of the report; some may be empty."""
    if view.culprit:
        yield from _of_culprit(view, view.culprit)
    yield Section("Stacks of other ranks", tuple(_stacks(view)), 3, 3)
    yield Section("Last collective of each rank", tuple(collective_lines(view)), 2, 4)
    failed = [rank for rank in view.others if rank.raised or (rank.exit and not rank.exit.asked)]
    yield Section("Ends of other ranks", tuple(end_lines(view, failed)), 4, 3)
    yield Section("Facts of the nodes", tuple(node_facts(view)), 5, 3)
    yield Section("Missing data", tuple(missing_data(view)), 6, 3)


def _of_culprit(view: IncidentView, culprit: RankEvidence) -> Iterator[Section]:
    yield Section(f"Evidence for rank {culprit.rank}", (*evidence_lines(culprit), *view.waits()), 0, 6)
    trace = visible_lines(culprit.raised.traceback) if culprit.raised else []
    if trace:
        yield Section("Traceback, the innermost call last", tuple(trace[-8:]), 1, 8, max(0, len(trace) - 8))
    elif thread := main_thread(culprit):
        source = f" (source: {culprit.stacks_from.value})" if culprit.stacks_from.value else ""
        marked = "; > marks the program's own code" if any(map(is_own, thread.frames)) else ""
        title = f"Python stack, the innermost call first{marked}{source}"
        yield Section(title, tuple(stack_lines(thread.frames, 8)), 1, 8)
    own = [thread for thread in other_threads(culprit) if any(map(is_own, thread.frames))]
    lines = tuple(f"{visible(thread.name, 40)}: {_calls(thread.frames)}" for thread in own)
    yield Section("Other threads in the program's own code", lines, 2, 3)
    last = [f"| {visible(line, 180)}" for line in stderr_lines(culprit)]
    yield Section("Last stderr output", tuple(last[-6:]), 2, 4, max(0, len(last) - 6))


def stderr_lines(rank: RankEvidence) -> list[str]:
    """The last lines of its stderr that are not in its traceback."""
    shown = set(rank.raised.traceback.splitlines()) if rank.raised else set()
    return [line for line in rank.last_lines if line.strip() and line not in shown]


def main_thread(rank: RankEvidence) -> Thread | None:
    """The thread that trains; the first one where none is marked as the main thread."""
    return next(iter([thread for thread in rank.stacks if thread.main] or rank.stacks), None)


def other_threads(rank: RankEvidence) -> list[Thread]:
    """All others: one of them may have the lock, or owe the batch, for which the main thread waits."""
    return [thread for thread in rank.stacks if thread is not main_thread(rank) and thread.frames]


def same_stack(rank: RankEvidence) -> tuple[Frame, ...] | None:
    """A key: the main thread's calls, the innermost first. None without a stack."""
    thread = main_thread(rank)
    return thread.frames if thread and thread.frames else None


def stack_lines(frames: Sequence[Frame], most: int) -> list[str]:
    """At most `most` lines: the innermost call, the program's own calls, then the others; gaps are counted."""
    own = [index for index, frame in enumerate(frames) if is_own(frame)]
    chosen: set[int] = set()
    for index in dict.fromkeys([*range(len(frames))[:1], *own, *range(len(frames))]):
        if len(_with_gaps(frames, chosen | {index})) <= max(most, 3):
            chosen.add(index)
    return _with_gaps(frames, chosen)


def _with_gaps(frames: Sequence[Frame], chosen: set[int]) -> list[str]:
    lines: list[str] = []
    for is_shown, part in groupby(enumerate(frames), lambda each: each[0] in chosen):
        calls = [frame for _, frame in part]
        if is_shown:
            lines += [f"{'>' if is_own(frame) else ' '} {call(frame)}" for frame in calls]
        else:
            lines.append(f"  … {len(calls)} calls" if len(calls) > 1 else "  … 1 call")
    return lines


def _stacks(view: IncidentView) -> Iterator[str]:
    for frames, ranks in grouped(view.others, same_stack):
        yield f"{counted([rank.rank for rank in ranks])}: {_calls(frames)}"


def _calls(frames: Sequence[Frame]) -> str:
    """The innermost call, and those of the program's own code that lead there."""
    python = [frame for frame in frames if not frame.native] or list(frames)
    calls = [python[0], *filter(is_own, python[1:])][:3]
    return " < ".join(call(frame) for frame in calls)


def collective_lines(view: IncidentView) -> Iterator[str]:
    """The newest collective of each group: the same sequence number must have the same operation and sizes."""
    for entry, ranks in same_collectives(view.case.ranks):
        yield f"{counted(ranks)}: {collective(entry)}"


def end_lines(view: IncidentView, ranks: Iterable[RankEvidence]) -> Iterator[str]:
    """Which ranks ended, their part in it, when and how."""
    parts: dict[int | None, str] = dict.fromkeys(view.verdict.followers, " as a result")
    for (what, part), same in grouped(ranks, lambda rank: (end_of(rank), parts.get(rank.rank, ""))):
        when = around_snapshot(max(map(end_moment, same)))
        yield f"{counted([rank.rank for rank in same])} ended{part}, {when}: {what}"


def node_facts(view: IncidentView) -> Iterator[str]:
    """Faults and notes of the nodes."""
    several = len(view.case.nodes) > 1
    for node in view.case.nodes:
        for text in (*(fault.text for fault in node.faults), *node.notes):
            yield (f"node {visible(node.node, 40)}: " if several else "") + visible(text, 160)


def missing_data(view: IncidentView) -> Iterator[str]:
    """What the evidence lacks, and why."""
    case = view.case
    lost = sorted({name for node in case.nodes for name in node.lost_nodes})
    yield from (f"node {visible(name, 60)}: lost, no report received" for name in lost[:GROUPS])
    if (missing := case.missing_nodes - len(lost)) > 0:
        yield f"{missing} of {missing + len(lost) + len(case.nodes)} nodes: no report received"
    for why, ranks in grouped(case.ranks, lambda rank: rank.no_stacks or None):
        yield f"stacks of {counted([rank.rank for rank in ranks])}: {why.text}"
    for why, ranks in grouped(case.ranks, lambda rank: rank.no_collectives or None):
        yield f"collectives of {counted([rank.rank for rank in ranks])}: {why.text}"
    if blind := [rank.rank for rank in case.ranks if rank.board is None]:
        yield f"board of {counted(blind)}: none, or it could not be read"


def fitted(found: Sequence[Section], room: int) -> list[str]:
    """The sections in `room` lines: each gets its share in the order of weight, then what is left."""
    given = dict.fromkeys(range(len(found)), 0)
    by_weight = sorted(given, key=lambda index: found[index].weight)
    for share in (True, False):
        for index in by_weight:
            section = found[index]
            wanted = min(section.share, len(section.lines)) if share else len(section.lines)
            free = room - sum(many + 1 for many in given.values() if many)
            free -= 0 if given[index] else 1  # its title
            given[index] += max(0, min(wanted - given[index], free))
    lines: list[str] = []
    for index, section in enumerate(found):
        if many := given[index]:
            missing = len(section.lines) - many + section.missing
            more = f" ({missing} more in incident.json)" if missing else ""
            lines += [f"  {section.title}{more}:", *(f"    {line}" for line in section.lines[:many])]
    return lines
