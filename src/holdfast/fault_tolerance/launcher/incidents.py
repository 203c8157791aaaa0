"""The incidents of one node: evidence while the ranks run, the report when they are gone.

Evidence after a hang is the monitor's and is read from its file; after a crash, and when another node reports
trouble, it is taken here, in a thread, before this node's ranks are stopped. What always holds: an error here costs a
report, nothing else. What it needs is imported in a thread while ranks start.
Does not cover: how the report is made (:mod:`.incident_report`), preemption and joining nodes, which are no incidents.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.in_time import TooLate, UnderWay
from holdfast.incidents.capture.context import NodeContext, Trigger
from holdfast.incidents.evidence import AT_EXIT, CRASH, HANG, TriggerKind
from holdfast.journal.writer import Journal

from ..processes import proc
from .control.exiting import DESCRIBED
from .control.messages import Event, EvidenceTaken, ExitDescribed
from .control.records import CycleRecord, Membership
from .ranks.boards import CycleBoards
from .ranks.failures import Failure
from .ranks.processes import RankGroup
from .store import StoreClient

if TYPE_CHECKING:
    from holdfast.incidents.capture.host import OomWatch
    from holdfast.incidents.capture.rank_probe import RankId
    from holdfast.incidents.evidence import NodeEvidence, RankEvidence

    from .incident_report import Reporter

NOTHING = "No evidence could be taken in time. This report only has how the ranks ended."
MONITOR = 2.5  # seconds in which the monitor is done with its evidence, if it runs
FOR_MEMORY = 0.2  # seconds for a read of the kernel's counts that is still under way


class Incidents:
    """The incident of the cycle that runs, until its report is under way.

    Args:
        store: The job's store; None in a job of one node.
        post: Takes an event, from any thread: `EvidenceTaken` after :meth:`capture`, `Reported` after
            :meth:`conclude`.
        health: Gives what is known against the health of this node, in a sentence each.
    """

    def __init__(
        self,
        boards: CycleBoards,
        journal: Journal,
        run_dir: str,
        store: StoreClient | None,
        post: Callable[[Event], object],
        health: Callable[[], tuple[str, ...]],
    ) -> None:
        self._boards, self._journal, self._run_dir, self._store = boards, journal, run_dir, store
        self._health = health
        self._post = post
        self._reporter: Reporter | None = None
        self._counts: UnderWay[OomWatch] | None = None
        self._file = ""  # the monitor's evidence
        self._forget(NodeContext())

    def _forget(self, context: NodeContext) -> None:
        """Forget the last cycle."""
        self._forget_file()
        self._forget_memory()
        self._context, self._began = context, time.time()
        self._captured: NodeEvidence | None = None
        self._under_way: UnderWay[NodeEvidence] | None = None
        self._logged: tuple[str, int | None] = ("", None)
        self._monitor_captures_until = 0.0  # monotonic seconds
        self._wants_evidence = ""  # the trigger, where the cycle ends and evidence is taken
        self._is_concluded = False
        self._at_exit: dict[int, RankEvidence] = {}  # by local rank, while its process did not end
        self._asked_at = 0.0  # monotonic seconds, of the newest of these

    def begin_cycle(self, context: NodeContext) -> None:
        """A cycle begins: write its context for the monitor, and forget the last cycle."""
        self._forget(context)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._counts = UnderWay(self._prepared)
        with contextlib.suppress(OSError):
            self._context.write(os.path.dirname(self._boards.path(0)))

    @staticmethod
    def _prepared() -> OomWatch:
        """During the start of the ranks: the kernel's counts, then the modules that an incident needs."""
        from holdfast.incidents.capture.host import OomWatch

        watch = OomWatch()
        from holdfast.incidents import rules

        from . import incident_report

        del incident_report, rules
        return watch

    def take_verdict(self, verdict: dict[str, Any], *, is_late: bool) -> None:
        """The monitor has a verdict on a hang, and has kept its evidence; `is_late`: in a cycle that is over.

        The verdict is published afterwards, so secrets are taken out of it.
        """
        file = str(verdict.pop("evidence", ""))
        sentence = verdict.pop("sentence", "")
        if is_late:
            _remove(file)
        else:
            self._forget_file()
            self._monitor_captures_until = 0.0
            self._file, self._under_way = file, None
            self._logged = str(verdict.get("cause")), verdict.get("culprit")
        if sentence:
            from holdfast.incidents.report.redaction import redacted_text

            verdict["sentence"] = redacted_text(sentence, os.environ)
            verdict["text"] = redacted_text(str(verdict.get("text", "")), os.environ)

    def take_capture(self, file: str | None, *, is_late: bool) -> EvidenceTaken | None:
        """The monitor begins to take evidence of a hang, or (with a file, or "") it has done so without a verdict."""
        if is_late:
            _remove(file or "")
            return None
        if file is None:
            self._monitor_captures_until = time.monotonic() + MONITOR
            return None
        self._monitor_captures_until = 0.0
        if self._wants_evidence:
            self._forget_file()
            self._file = file
        else:
            _remove(file)  # the rank continued, and so does the job
        return EvidenceTaken(self._context.cycle, self._wants_evidence)

    def capture(self, group: RankGroup, trigger: str, rank: int | None, seconds: float) -> None:
        """Take evidence within `seconds`: of a "crash" of this rank, or of trouble "elsewhere".

        After a crash the ranks are only read. When another node reports trouble the culprit may be one of ours: the
        ranks are signalled for their stacks before they end.
        """
        asks, done = trigger == "elsewhere", EvidenceTaken(self._context.cycle, trigger)
        self._wants_evidence = trigger
        if time.monotonic() < self._monitor_captures_until:
            return  # never twice at once: the monitor reports when it is done
        if self._file or (self._captured is not None and (not asks or self._captured.trigger == trigger)):
            self._post(done)
            return
        from holdfast.incidents.capture.capture import capture
        from holdfast.incidents.capture.rank_probe import opened

        folder, known = os.path.dirname(self._boards.path(0)), self._known(group)
        context, why = self._context, Trigger(TriggerKind(trigger), rank)
        # A share of the time is for taking it, the rest for what has to be done with it.
        until = time.monotonic() + (0.9 if asks else 0.5) * seconds

        def work() -> NodeEvidence:
            try:
                # Reading /proc may block, and is this thread's affair.
                ranks = [
                    (rank, key, pid, born or proc.start_time(pid) or 0) for rank, key, pid, born in known
                ]
                with opened(folder, context.node, ranks) as local:
                    return capture(local, context, why, until, ask=asks, pause=0.05 if asks else 0.0)
            finally:
                self._post(done)

        self._finish(0.5 * seconds)  # what was too late before
        try:
            if self._under_way is None:  # never twice at once
                self._under_way = UnderWay(work)
                return
        except RuntimeError as error:
            self._journal.record("launcher_error", what="the taking of evidence", error=repr(error))
        self._post(done)

    def describe_exit(self, group: RankGroup, local: int) -> None:
        """Find out what keeps the process of this local rank; the answer is posted as `ExitDescribed`."""
        folder, context, at_exit = os.path.dirname(self._boards.path(0)), self._context, self._at_exit
        known = [each for each in self._known(group) if each[1] == local]
        self._asked_at = time.monotonic()

        def work() -> None:
            text = "what keeps it could not be found out"
            try:
                from holdfast.incidents.capture.capture import gather
                from holdfast.incidents.capture.rank_probe import opened
                from holdfast.incidents.report.redaction import redacted_text
                from holdfast.incidents.rules.signatures import activity

                with opened(folder, context.node, known) as ranks:
                    until = time.monotonic() + DESCRIBED
                    (found,) = gather(ranks, until, ask=True)
                    if len(found.stacks) < 2 and time.monotonic() < until:  # its thread had no processor time
                        (found,) = gather(ranks, until, ask=True)
                at_exit[local] = found
                text = redacted_text(f"its main thread {activity(found).text}", os.environ)
            except Exception as error:
                what = "the description of a rank at its end"
                self._journal.record("launcher_error", what=what, error=repr(error))
            finally:
                self._post(ExitDescribed(context.cycle, local, text))

        UnderWay(work)

    def report_exits(self, group: RankGroup, why: str) -> None:
        """Have the ranks reported that were described, while the job continues; a failure of this cycle replaces that.

        Does not cover: the ranks of other nodes, whose evidence is not asked for.
        """
        from holdfast.incidents.capture.capture import gather, without_evidence
        from holdfast.incidents.capture.rank_probe import opened

        folder, context, found = os.path.dirname(self._boards.path(0)), self._context, dict(self._at_exit)
        others = [each for each in self._known(group) if each[1] not in found]
        accused = min((rank.rank for rank in found.values()), default=None)
        evidence = replace(without_evidence(context, AT_EXIT), accused=accused, reason=why)
        evidence = replace(evidence, took=round(evidence.mono - self._asked_at, 4))

        def complete() -> tuple[NodeEvidence, float | None]:
            with opened(folder, context.node, others) as ranks:
                seen = gather(ranks, time.monotonic() + DESCRIBED / 2, ask=False)
            every = replace(evidence, ranks=(*found.values(), *seen))
            return completed(every, group, (), None), evidence.mono

        from .incident_report import Summary, completed

        self._reports().begin(complete, context, Summary(self._began))

    def _reports(self) -> Reporter:
        from .incident_report import Reporter

        if self._reporter is None:
            node, run_dir = self._context.node, self._run_dir
            self._reporter = Reporter(node, run_dir, self._journal, self._store, self._post)
        return self._reporter

    def _finish(self, seconds: float = 0.0) -> None:
        """Take over what is under way, if it is done within `seconds`; this may be called again later."""
        if self._under_way is None:
            return
        try:
            captured = self._under_way.answer(seconds)
            self._captured = captured if self._captured is None else _both(self._captured, captured)
        except TooLate:
            return
        except Exception as error:  # the report has how the ranks ended, at least
            self._journal.record("launcher_error", what="the taking of evidence", error=repr(error))
        self._under_way = None

    def _known(self, group: RankGroup) -> list[RankId]:
        boards = self._boards.snapshots()
        found = []
        for local_rank in group.local_ranks:
            pid = group.pid_of(local_rank)
            identity = boards[local_rank].identity if local_rank in boards else None
            started = identity.start_time if identity else 0
            found.append((group.rank_of(local_rank), local_rank, pid, started))
        return found

    def in_order(self, group: RankGroup, failures: list[Failure]) -> list[Failure]:
        """These failures, first the culprit: of a hang by the monitor's verdict, else by how the ranks ended."""
        from holdfast.incidents.capture.capture import without_evidence

        from .incident_report import culprit_of

        self._finish()
        kind, culprit = self._logged
        if not (self._file and kind):
            # Without what was captured: the ranks may have ended in another order since.
            culprit = culprit_of(without_evidence(self._context, CRASH), group, failures)
        return sorted(failures, key=lambda failure: failure.exit.rank != culprit)

    def conclude(
        self,
        group: RankGroup,
        failures: Iterable[Failure],
        *,
        record: CycleRecord,
        members: Membership,
        lost_nodes: tuple[str, ...] = (),
        same_failure_limit: int = 0,
    ) -> bool:
        """The ranks have ended: complete the evidence and have the report made, once a cycle, by the node that wrote
        `record`, with which the next cycle begins.

        Returns at once: reading the monitor's evidence and the kernel's counts is left to the report's thread.

        Returns:
            Whether a report is under way.
        """
        if self._is_concluded:
            return False
        self._is_concluded = True
        from .incident_report import Summary, completed

        ended = list(failures)
        named = ended[0].exit.rank if ended else None
        summary = Summary(self._began, record, self._logged, named, members, same_failure_limit)
        self._finish()
        file, self._file = self._file, ""
        memory, captured, at_exit = self._take_memory(), self._captured, self._at_exit
        context = self._context

        def complete() -> tuple[NodeEvidence, float | None]:
            from holdfast.incidents.capture.capture import load_spill, without_evidence

            found = captured  # the monitor's, or ours, or none
            if file:
                with contextlib.suppress(OSError, ValueError):
                    found = load_spill(file)
            ready = None if found is None else found.mono + found.took
            if found is None:
                found = replace(without_evidence(context, HANG if file else CRASH), notes=(NOTHING,))
            notes = (*found.notes, *self._health())
            found = replace(found, reason=record.reason, lost_nodes=lost_nodes, notes=notes)
            found = completed(found, group, ended, memory)
            ranks = tuple(_with_stacks(rank, at_exit.get(rank.local_rank)) for rank in found.ranks)
            return replace(found, ranks=ranks), ready

        return self._reports().begin(complete, context, summary)

    def _forget_file(self) -> None:
        _remove(self._file)
        self._file = ""

    def _take_memory(self) -> OomWatch | None:
        """What the kernel's counts were when the cycle began, if they are known by now; the caller closes it."""
        counts, self._counts = self._counts, None
        with contextlib.suppress(Exception):  # too late, or it failed: nothing is known then
            return counts.answer(FOR_MEMORY) if counts is not None else None
        return None

    def _forget_memory(self) -> None:
        if memory := self._take_memory():
            memory.close()

    def close(self) -> None:
        """The launcher ends: wait a moment for reports that are under way."""
        self._forget_file()
        self._forget_memory()
        if self._reporter is not None:
            self._reporter.close()


def _remove(file: str) -> None:
    """The file of this name; "": there is none."""
    with contextlib.suppress(OSError):
        os.unlink(file)


def _both(earlier: NodeEvidence, later: NodeEvidence) -> NodeEvidence:
    """Captured twice: what the later one wanted, and the state before."""
    first = {rank.rank: rank for rank in earlier.ranks}
    ranks = tuple(
        rank if rank.stacks or rank.rank not in first else replace(first[rank.rank], notes=rank.notes)
        for rank in later.ranks
    )
    return replace(later, trigger=earlier.trigger, accused=earlier.accused, ranks=ranks)


def _with_stacks(rank: RankEvidence, at_exit: RankEvidence | None) -> RankEvidence:
    """With the stacks that were taken while its process did not end, if there are no others."""
    if at_exit is None or rank.stacks:
        return rank
    return replace(rank, stacks=at_exit.stacks, stacks_from=at_exit.stacks_from, no_stacks=at_exit.no_stacks)
