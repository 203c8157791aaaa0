"""The report of an incident: made in a thread of its own, of all nodes' evidence, while the job is long restarted.

Of several nodes the one that wrote the cycle record makes it. The others send it their evidence through the rendezvous
store, in short, and write it in full next to the report where the run directory is shared: then that is what counts.
What always holds: no restart waits for any of it, and nothing is written before secrets are taken out.
Does not cover: nodes that send nothing within `OTHERS` seconds; the report has their number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.incidents import classify
from holdfast.incidents.capture.capture import judged
from holdfast.incidents.capture.context import NodeContext
from holdfast.incidents.capture.host import OomWatch, core_dump, gpu_facts
from holdfast.incidents.evidence import (
    Case,
    Exit,
    Nature,
    NodeEvidence,
    NodeFaultKind,
    RankEvidence,
)
from holdfast.incidents.report import store as stored
from holdfast.incidents.report.next_steps import short_step
from holdfast.incidents.report.redaction import redacted, redacted_text
from holdfast.incidents.report.text import IncidentView
from holdfast.incidents.rules import judge
from holdfast.incidents.suspicions import Failure as Judged
from holdfast.incidents.verdict import Judgement, Verdict
from holdfast.incidents.wire import packed, unpacked
from holdfast.journal.writer import Journal
from holdfast.visible import without_numbers

from ..processes import proc
from .control import suspects
from .control.messages import Append, Put, Reported, Suspected
from .control.records import FAILURES, CycleRecord, Kind, Membership, key
from .exit_codes import RankExit
from .ranks.failures import Failure
from .ranks.processes import RankGroup
from .store import StoreClient, StoreGone

logger = logging.getLogger("holdfast.launcher")
OTHERS = 10.0  # seconds for the other nodes' evidence: they may have ranks that take long to end
LEFT_BEHIND = 3.0  # where one of them is lost
AT_THE_END = 2.0  # seconds that a launcher waits at its end for reports
ANSWER = 10.0  # seconds for an answer of the store
IN_A_HURRY = 1.0  # seconds in which a report under way is written with what there is by then
DRIVER = 1.2  # seconds that a GPU's driver has to report its errors
TEXT = 200  # characters of an exception
FOLDER, IN_FULL = "folder", "full"  # whether a node has written its evidence in full: "yes" or "no"
FIRST_POLL, LONGEST_POLL = 0.1, 2.0  # seconds between two reads of the store, by thousands of nodes at once

Complete = Callable[[], tuple[NodeEvidence, "float | None"]]
"""The evidence with how the ranks ended, and when it was complete (monotonic seconds; None: there was none)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What was reported of an incident already, apart from its evidence."""

    since: float
    """When the cycle began, unix seconds."""
    record: CycleRecord | None = None
    """With which the next cycle begins; its node makes the report. None: the job continues, so that no other node is
    asked for its evidence, and nothing waits for the report."""
    logged: tuple[str, int | None] = ("", None)
    """Kind and rank of the verdict that was logged already."""
    named: int | None = None
    """The rank that was logged as the first to fail, with its exception or how it ended."""
    members: Membership = field(default_factory=lambda: Membership(()))
    same_failure_limit: int = 0

    def covers(self, verdict: Verdict) -> bool:
        """Whether the log has everything that is in the verdict."""
        plain = verdict.kind in ("exception", "exit", "signal") and verdict.rank == self.named
        return plain or (verdict.kind, verdict.rank) == self.logged


class Reporter:
    """Makes this node's reports; `post` gets `Reported` after each, and `Suspected`.

    Args:
        store: The job's store, through which the nodes exchange evidence (keys `incident/N/*`); None in a job of one
            node.
    """

    def __init__(
        self,
        node: str,
        run_dir: str,
        journal: Journal,
        store: StoreClient | None,
        post: Callable[[Reported | Suspected], object],
    ) -> None:
        self._node, self._run_dir, self._journal, self._store = node, run_dir, journal, store
        self._post = post
        self._under_way: list[threading.Thread] = []
        self._writes = threading.Lock()
        self._failed = set[int]()  # cycles of which a failure is reported: it replaces an earlier report
        self._hurry = threading.Event()
        self._failures = ""  # the judgements until now, as in the job's store

    def begin(self, complete: Complete, context: NodeContext, summary: Summary) -> bool:
        """Make the report, or give this evidence to the node that does; whether that is under way. Never raises."""
        record = summary.record
        makes_it = context.nodes == 1 or record is None or record.node in ("", self._node)
        work = self._make if makes_it else self._give
        if record is not None:
            self._failed.add(context.cycle)
        thread = threading.Thread(
            target=self._run, args=(work, complete, context, summary), name="holdfast-incident", daemon=True
        )
        self._under_way = [each for each in self._under_way if each.is_alive()]
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("no report of this incident: %s", error)
            return False
        self._under_way.append(thread)
        return True

    def close(self) -> None:
        """Wait for the reports under way; those that take longer are written with the evidence they have by then."""
        self._join(AT_THE_END)
        self._hurry.set()
        self._join(IN_A_HURRY)

    def _join(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._under_way:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, work: Any, complete: Complete, context: NodeContext, summary: Summary) -> None:
        try:
            evidence, ready = complete()
            work(redacted(evidence, os.environ), ready, summary)
        except OSError as error:
            where = error.filename or self._run_dir
            logger.warning("no report of this incident: %s: %s", where, error.strerror or error)
        except Exception as error:
            logger.warning("no report of this incident: %r. Please report this as a bug of Holdfast", error)
            logger.debug("where:", exc_info=error)
        finally:
            if summary.record is not None:
                self._post(Reported(context.cycle))

    def _put(self, cycle: int, name: str, text: str) -> None:
        """Write it for the other nodes. Raises StoreGone."""
        assert self._store is not None
        self._store.ask(Put(f"{key('incident', cycle)}/{name}", text), ANSWER)

    def _read(self, cycle: int, name: str) -> str:
        """What a node has written; "" where it has not. Raises StoreGone."""
        assert self._store is not None
        return self._store.ask(f"{key('incident', cycle)}/{name}", ANSWER)

    def _give(self, evidence: NodeEvidence, ready: float | None, summary: Summary) -> None:
        """Send the evidence to the node that makes the report; where that node does not, make a report from it here."""
        number, cycle = evidence.node_rank, evidence.cycle
        with contextlib.suppress(StoreGone):
            self._put(cycle, str(number), packed(evidence))
            for pause in poll_pauses(number):
                if (place := self._read(cycle, FOLDER)) or self._hurry.wait(pause):
                    break
            if place:
                own = stored.incident_in(self._run_dir, os.path.basename(place))
                is_shared = bool(
                    own and own.path == place and own.is_of(evidence.run_id, cycle, summary.since)
                )
                try:
                    if is_shared:
                        stored.write_fragment(place, evidence)
                finally:
                    self._put(cycle, f"{number}/{IN_FULL}", "yes" if is_shared else "no")
                return
        place = stored.allocate_incident_dir(self._run_dir, evidence.run_id, cycle, since=summary.since)
        self._announce(place, (evidence,), ready, summary)

    def _make(self, evidence: NodeEvidence, ready: float | None, summary: Summary) -> None:
        """Make the report from this node's evidence, then again with all nodes' evidence and the GPUs' facts."""
        run_id, cycle = evidence.run_id, evidence.cycle
        place = stored.allocate_incident_dir(self._run_dir, run_id, cycle, since=summary.since)
        has_others = self._store is not None and evidence.nodes > 1 and summary.record is not None
        if has_others:
            with contextlib.suppress(StoreGone):
                self._put(cycle, FOLDER, place)
            stored.write_fragment(place, evidence)
        if (has_others or proc.nvidia_driver()) and summary.record is not None:
            _write(place, Case((evidence,)))
        faults, facts = gpu_facts(time.monotonic() + DRIVER)
        others, notes = self._others(evidence, place) if has_others else ([], ())
        notes = (*evidence.notes, *facts, *notes)
        evidence = replace(evidence, faults=(*evidence.faults, *faults), notes=notes)
        failure = None
        with self._writes:
            if summary.record is not None or cycle not in self._failed:
                failure = self._announce(place, (evidence, *others), ready, summary)
        if failure is not None and summary.record is not None:
            is_last = summary.record.kind is Kind.END
            self._suspect(failure, len(summary.members.members), is_last=is_last)

    def _others(self, own: NodeEvidence, place: str) -> tuple[list[NodeEvidence], tuple[str, ...]]:
        """What the other nodes have written, as soon as all have, or time is up; and notes on what cannot be read."""
        numbers = [number for number in range(own.nodes) if number != own.node_rank]
        texts: dict[int, str] = {}
        in_full: dict[int, str] = {}
        # A lost node writes nothing; which number it had is not in the evidence.
        enough = len(own.lost_nodes)
        until, pause = time.monotonic() + (LEFT_BEHIND if own.lost_nodes else OTHERS), 0.05
        with contextlib.suppress(StoreGone):
            while True:
                for number in numbers:
                    if self._hurry.is_set() or time.monotonic() > until:
                        break  # of thousands of nodes, each read is a round trip
                    if number not in texts and (text := self._read(own.cycle, str(number))):
                        texts[number] = text
                    if number in texts and not in_full.get(number):
                        in_full[number] = self._read(own.cycle, f"{number}/{IN_FULL}")
                missing = sum(1 for number in numbers if not in_full.get(number))
                if missing <= enough or time.monotonic() > until or self._hurry.wait(pause):
                    break
                pause = min(0.5, 1.2 * pause)
        fragments = {
            node.node_rank: node
            for node in (stored.read_fragments(place) if "yes" in in_full.values() else ())
            if (node.run_id, node.cycle) == (own.run_id, own.cycle)
        }
        others, notes = [], list[str]()
        for number, text in sorted(texts.items()):
            try:
                others.append(fragments.get(number) or unpacked(text))
            except ValueError as error:
                notes.append(f"The evidence of node {number} cannot be read: {error}.")
        return others, tuple(notes)

    def _announce(
        self, place: str, nodes: tuple[NodeEvidence, ...], ready: float | None, summary: Summary
    ) -> Judged:
        own, case = nodes[0], Case(nodes)
        judgement = _write(place, case)
        verdict = judgement.verdict
        failure = judged_failure(case, verdict, summary)
        sentence = redacted_text(verdict.sentence, os.environ)
        step = redacted_text(short_step(IncidentView(case, judgement)), os.environ)
        report, record, more = os.path.join(place, "report.txt"), summary.record, dict[str, Any]()
        if record is None:
            more = {"job_goes_on": True}
        elif record.same_failures and summary.same_failure_limit:
            more = {"failure": record.failure, "same_failures": record.same_failures}
            more["same_failure_limit"] = summary.same_failure_limit
        self._journal.record(
            "incident",
            cycle=own.cycle,
            rank=verdict.rank,
            culprit_node=verdict.node,
            cause=verdict.kind,
            confidence=verdict.confidence,
            sentence=sentence,
            followers=list(verdict.followers)[:64],
            evidence_mono=ready,
            report=place,
            **({"accuses": sorted(failure.accused)} if failure.accused else {}),
            **more,
        )
        if summary.covers(verdict):
            logger.warning("report on cycle %d (next: %s): %s", own.cycle, step, report)
        else:
            what = own.cycle, sentence, verdict.confidence, step, report
            logger.warning("verdict on cycle %d: %s (confidence %s). Next: %s. Report: %s", *what)
        return failure

    def _suspect(self, failure: Judged, nodes: int, *, is_last: bool) -> None:
        """Add the judgement to the history of the job, and report what it makes suspect."""
        line = suspects.encoded(failure)
        self._failures += line + "\n"
        if self._store is not None:
            seconds = IN_A_HURRY if is_last else ANSWER
            with contextlib.suppress(StoreGone):
                self._store.ask(Append(FAILURES, line), seconds)
                self._failures = self._store.ask(FAILURES, seconds) or self._failures
        has_next = self._store is not None and not is_last
        for each in suspects.suspected_by(failure, self._failures, nodes):
            is_node = each.what == failure.node
            name = "suspect" if is_node else "pair" if failure.peers else "domain"
            self._journal.record(
                "node_suspected", cycle=failure.cycle, **{name: each.what, "facts": each.facts}
            )
            follows = (
                ". At the next restart a node that waits takes its place" if is_node and has_next else ""
            )
            logger.warning("suspect: %s%s", each.facts, follows)
            if each.what == self._node:
                self._post(Suspected())


def _write(place: str, case: Case) -> Judgement:
    """Judge the evidence, and write its report into the folder."""
    judgement = judged(case)
    stored.write_report(place, case, judgement)
    return judgement


def judged_failure(case: Case, verdict: Verdict, summary: Summary) -> Judged:
    """What follows from this incident for the nodes and the program, for the choice of the next members."""
    raised = next((rank.raised for rank in case.ranks if rank.rank == verdict.rank), None)
    exception = " ".join(f"{raised.type}: {raised.message}".split())[:TEXT] if raised else ""
    nature = raised.nature if raised else Nature.OWN
    faults = [
        fault.text
        for node in case.nodes
        if node.node == verdict.node
        for fault in node.faults
        if fault.kind in (NodeFaultKind.GPU, NodeFaultKind.HARDWARE)
    ]
    hardware, signature = "".join(faults[:1]), ""
    if nature in (Nature.BROKEN_GPU, Nature.BROKEN_DISK):
        hardware = exception
    elif raised and verdict.kind == "exception":
        is_own = not classify.comes_from_outside(raised.type, raised.message)
        signature, hardware = (without_numbers(exception), "") if is_own else ("", hardware)
    steps = [rank.board.step for rank in case.ranks if rank.board and rank.board.step is not None]
    return Judged(
        verdict.kind,
        verdict.node,
        confidence=verdict.confidence,
        signature=signature,
        hardware=hardware,
        may_be_shared=nature is Nature.BROKEN_DISK,
        step=max(steps, default=None),
        without=summary.members.left_out,
        domain=next((each.domain for each in summary.members.members if each.node == verdict.node), ""),
        cycle=case.nodes[0].cycle,
        at=summary.record.at if summary.record else 0.0,
        peers=tuple(sorted({rank.node for rank in case.ranks if rank.rank in verdict.pair})),
    )


def poll_pauses(number: int) -> Iterator[float]:
    """Seconds between the reads of node `number` that waits for the report's folder: `OTHERS` in all.

    Thousands of nodes wait at once: the pauses grow, and each node reads at another moment.
    """
    left, pause = OTHERS, FIRST_POLL
    while left > 0:
        yield min(left, found := pause * (0.5 + number * 0.618 % 1.0))
        left, pause = left - found, min(2 * pause, LONGEST_POLL)
    yield 0.0


# -- how the ranks ended ---------------------------------------------------------------------------------------


def completed(
    evidence: NodeEvidence, group: RankGroup, failures: Sequence[Failure], memory: OomWatch | None
) -> NodeEvidence:
    """The evidence with how the ranks ended and what the kernel reports by now; closes `memory`."""
    try:
        faults, notes = memory.facts() if memory is not None else ((), ())
        found = replace(evidence, faults=(*evidence.faults, *faults), notes=(*evidence.notes, *notes))
        return with_ends(found, group, failures, memory)
    finally:
        if memory is not None:
            memory.close()


def culprit_of(evidence: NodeEvidence, group: RankGroup, failures: Sequence[Failure]) -> int | None:
    """The rank that this node's evidence and how its ranks ended accuse; None: none."""
    return judge(Case((with_ends(evidence, group, failures, None),))).verdict.rank


def with_ends(
    evidence: NodeEvidence, group: RankGroup, failures: Sequence[Failure], memory: OomWatch | None
) -> NodeEvidence:
    """The evidence with exits, exceptions and last lines; ranks of which nothing was taken appear as well."""
    failed = {failure.exit.local_rank: failure for failure in failures}
    known = {rank.local_rank: rank for rank in evidence.ranks}
    ranks = []
    for local_rank in group.local_ranks:
        rank = known.get(local_rank) or RankEvidence(
            group.rank_of(local_rank), local_rank, group.pid_of(local_rank), evidence.node
        )
        end = group.exits.get(local_rank)
        if end is not None:
            by_itself = failed.get(local_rank)
            if by_itself is not None and by_itself.exit.status != end.status:
                # Its exception was ending it when the launcher stopped it.
                end = replace(end, by_launcher=True)
            asked = (by_itself is None and end.status != 0) or bool(by_itself and by_itself.hung)
            exit_ = _exit(end, evidence.mono, memory, asked=asked)
            rank = replace(rank, exit=replace(exit_, kept_by=by_itself.kept_by if by_itself else ""))
        if (failure := failed.get(local_rank)) is not None:
            rank = _with_words(rank, failure, evidence.mono)
        ranks.append(rank)
    return replace(evidence, ranks=tuple(ranks))


def _exit(end: RankExit, mono: float, memory: OomWatch | None, *, asked: bool) -> Exit:
    memory_text, core, is_counted = "", "", False
    if not asked and end.status < 0:
        with contextlib.suppress(Exception):  # the exit itself is reported in any case
            memory_text = memory.killed(end.pid) if memory and end.status == -signal.SIGKILL else ""
            is_counted = bool(memory_text and memory and not memory.names(end.pid))
            core = core_dump(end.pid, -end.status)
    meaning = end.end if asked else end.meaning
    ago = round(mono - end.at, 4)
    return Exit(end.status, meaning, ago, asked, bool(memory_text), is_counted, memory_text, core)


def _with_words(rank: RankEvidence, failure: Failure, mono: float) -> RankEvidence:
    raised = rank.raised
    if failure.error and (failure.leaving or not failure.hung):
        error = failure.error
        type_, message, trace = (str(error.get(name, "")) for name in ("type", "message", "traceback"))
        raised = classify.raised(type_, message, trace, round(mono - failure.began, 4))
    lines = tuple(failure.last_lines) or rank.last_lines
    return replace(rank, raised=raised, last_lines=lines, stderr=classify.nature_of_lines(lines))
