"""The incidents of one node: evidence while the ranks run, the report when they are gone.

Evidence after a hang is the monitor's and is read from its file; after a crash, and when another node reports
trouble, it is taken here, in a thread, before this node's ranks are stopped. What always holds: an error here costs a
report, nothing else. What it needs is imported once ranks train: a launcher starts without.
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
from holdfast.incidents.place import Occasion, Place
from holdfast.journal.writer import Journal

from ..processes import proc
from .control.messages import EvidenceTaken, Reported
from .ranks.boards import CycleBoards
from .ranks.failures import Failure
from .ranks.group import RankGroup
from .store import StoreClient

if TYPE_CHECKING:
    from holdfast.incidents.evidence import NodeEvidence
    from holdfast.incidents.gathering.local_rank import Known
    from holdfast.incidents.gathering.memory import OomWatch
    from holdfast.incidents.taking import Taken

    from .incident_report import Reporter

NOTHING = "No evidence could be taken in time: what stands here is how the ranks ended."
MONITOR = 2.5  # seconds in which the monitor is done with its evidence, if it runs
FOR_MEMORY = 0.2  # seconds for a look at the kernel's counts that is still under way


class Incidents:
    """The incident of the cycle that runs, until its report is under way.

    Args:
        store: The job's store; None in a job of one node.
        evidence_taken: Called, from any thread, when what :meth:`capture` was to take is there.
        reported: Called, from any thread, when no report is under way any more.
    """

    def __init__(
        self,
        boards: CycleBoards,
        journal: Journal,
        run_dir: str,
        store: StoreClient | None,
        evidence_taken: Callable[[EvidenceTaken], object],
        reported: Callable[[Reported], object],
    ) -> None:
        self._boards, self._journal, self._run_dir, self._store = boards, journal, run_dir, store
        self._evidence_taken, self._reported = evidence_taken, reported
        self._reporter: Reporter | None = None
        self._place = Place()
        self._taken: Taken | None = None
        self._under_way: UnderWay[Taken] | None = None
        self._said: tuple[str, int | None] = ("", None)
        self._file = ""
        self._monitor_captures_until = 0.0  # monotonic seconds
        self._wants_evidence = ""  # the trigger, where the cycle ends and evidence is taken
        self._told = False
        self._began = 0.0
        self._memory: OomWatch | None = None
        self._counts: UnderWay[OomWatch] | None = None

    def begin_cycle(self, place: Place) -> None:
        """A cycle begins: give the monitor the place of its ranks, and forget the last one."""
        self._place = place
        self._forget_file()
        self._taken, self._under_way, self._said = None, None, ("", None)
        self._monitor_captures_until, self._wants_evidence = 0.0, ""
        self._told, self._began = False, time.time()
        self._forget_memory()
        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._counts = UnderWay(self._prepared)
        with contextlib.suppress(OSError):
            self._place.leave(os.path.dirname(self._boards.path(0)))

    @staticmethod
    def _prepared() -> OomWatch:
        """Beside the start of the ranks: the kernel's counts, then the modules that an incident needs."""
        from holdfast.incidents.gathering.memory import OomWatch

        watch = OomWatch()
        from holdfast.incidents import rules

        from . import incident_ends, incident_report

        del incident_ends, incident_report, rules
        return watch

    def take_verdict(self, verdict: dict[str, Any], *, is_late: bool) -> None:
        """The monitor has a verdict on a hang, and has kept its evidence; `is_late`: in a cycle that is over.

        The verdict is published afterwards, so secrets are taken out of it.
        """
        file = str(verdict.pop("evidence", ""))
        sentence = verdict.pop("sentence", "")
        if is_late and file:
            _remove(file)
        elif not is_late:
            self._forget_file()
            self._monitor_captures_until = 0.0
            self._file, self._under_way = file, None
            self._said = str(verdict.get("cause")), verdict.get("culprit")
        if sentence:
            from holdfast.incidents.report.redaction import redacted_text

            verdict["sentence"] = redacted_text(sentence, os.environ)

    def take_capture(self, file: str | None, *, is_late: bool) -> EvidenceTaken | None:
        """The monitor begins to take evidence of a hang, or (with a file, or "") it has done so without a verdict."""
        if is_late:
            if file:
                _remove(file)
            return None
        if file is None:
            self._monitor_captures_until = time.monotonic() + MONITOR
            return None
        self._monitor_captures_until = 0.0
        if self._wants_evidence:
            self._forget_file()
            self._file = file
        elif file:
            _remove(file)  # the rank continued, and so does the job
        return EvidenceTaken(self._place.cycle, self._wants_evidence)

    def capture(self, group: RankGroup, trigger: str, rank: int | None, seconds: float) -> None:
        """Take evidence within so many seconds: of a "crash" of this rank, or of trouble "elsewhere".

        After a crash the ranks are only looked at. When another node reports trouble the culprit may be one of ours:
        the ranks are asked for their stacks before they go.
        """
        asks, done = trigger == "elsewhere", EvidenceTaken(self._place.cycle, trigger)
        self._wants_evidence = trigger
        if time.monotonic() < self._monitor_captures_until:
            return  # never twice at once: the monitor reports when it is done
        if self._file or (self._taken is not None and (not asks or self._taken.evidence.trigger == trigger)):
            self._evidence_taken(done)
            return
        from holdfast.incidents.gathering.local_rank import opened
        from holdfast.incidents.taking import take

        folder, known = os.path.dirname(self._boards.path(0)), self._known(group)
        place, occasion = self._place, Occasion(trigger, rank)
        # A share of the time is for taking it, the rest for what has to be done with it.
        until = time.monotonic() + (0.9 if asks else 0.5) * seconds

        def work() -> Taken:
            try:
                # Reading /proc may block, and is this thread's affair.
                ranks = [
                    (rank, key, pid, born or proc.start_time(pid) or 0) for rank, key, pid, born in known
                ]
                with opened(folder, place.node, ranks) as local:
                    return take(
                        local, place, occasion, until, ask=asks, pause=0.05 if asks else 0.0, judge=False
                    )
            finally:
                self._evidence_taken(done)

        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._finish(0.5 * seconds)  # what was too late before
            if self._under_way is None:  # never twice at once
                self._under_way = UnderWay(work)

    def _finish(self, seconds: float = 0.0) -> None:
        """Take over what is under way, if it is done within so many seconds; it may be asked for again later."""
        if self._under_way is not None:
            with contextlib.suppress(TooLate):
                under_way, self._under_way = self._under_way, None
                try:
                    taken = under_way.answer(seconds)
                except TooLate:
                    self._under_way = under_way
                    raise
                except Exception as error:  # the report says how the ranks ended, at least
                    self._journal.record("launcher_error", what="the taking of evidence", error=repr(error))
                    return
                self._taken = taken if self._taken is None else _both(self._taken, taken)

    def _known(self, group: RankGroup) -> list[Known]:
        boards = self._boards.snapshots()
        found = []
        for local_rank in group.local_ranks:
            pid = group.pid_of(local_rank)
            identity = boards[local_rank].identity if local_rank in boards else None
            started = identity.start_time if identity else 0
            found.append((group.rank_of(local_rank), local_rank, pid, started))
        return found

    def conclude(
        self,
        group: RankGroup,
        failures: Iterable[Failure],
        *,
        reason: str,
        reporter: str,
        lost_nodes: tuple[str, ...] = (),
    ) -> bool:
        """The ranks have ended: complete the evidence and have the report made, once a cycle, by node `reporter`.

        Returns at once: reading the monitor's evidence and the kernel's counts is left to the report's thread.

        Returns:
            Whether a report is under way.
        """
        if self._told:
            return False
        self._told = True
        from .incident_report import Reporter, Told

        ended = list(failures)
        named = ended[0].exit.rank if ended else None
        told = Told(reporter, self._began, self._said, named)
        memory, self._memory = self._memory_watch(), None
        evidence = self._evidence()

        def complete() -> tuple[NodeEvidence, float | None]:
            from .incident_ends import completed

            found, ready = evidence()
            found = replace(found, reason=reason, lost_nodes=lost_nodes)
            return completed(found, group, ended, memory), ready

        if self._reporter is None:
            node = self._place.node
            self._reporter = Reporter(node, self._run_dir, self._journal, self._store, self._reported)
        return self._reporter.begin(complete, self._place, told)

    def _evidence(self) -> Callable[[], tuple[NodeEvidence, float | None]]:
        """What gives the evidence of this cycle: the monitor's, or ours, or none."""
        file, self._file = self._file, ""
        self._finish()
        taken, place = self._taken, self._place

        def get() -> tuple[NodeEvidence, float | None]:
            own = taken
            if file:
                from holdfast.incidents.taking import kept

                with contextlib.suppress(OSError, ValueError):
                    own = kept(file)
            return (own.evidence, own.ready) if own else (_nothing(place, "hang" if file else "crash"), None)

        return get

    def _forget_file(self) -> None:
        if self._file:
            _remove(self._file)
        self._file = ""

    def _forget_memory(self) -> None:
        memory, self._memory = self._memory_watch(), None
        if memory is not None:
            memory.close()

    def _memory_watch(self) -> OomWatch | None:
        """What the kernel's counts were when the cycle began, if they are known by now."""
        if self._memory is None and self._counts is not None:
            with contextlib.suppress(Exception):  # too late, or it failed: nothing is known then
                self._memory = self._counts.answer(FOR_MEMORY)
            self._counts = None
        return self._memory

    def close(self) -> None:
        """The launcher ends: wait a moment for reports that are under way."""
        self._forget_file()
        self._forget_memory()
        if self._reporter is not None:
            self._reporter.close()


def _remove(file: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(file)


def _both(earlier: Taken, later: Taken) -> Taken:
    """Taken twice: what the later one asked for, and how things were before."""
    first = {rank.rank: rank for rank in earlier.evidence.ranks}
    ranks = tuple(
        rank if rank.stacks or rank.rank not in first else replace(first[rank.rank], notes=rank.notes)
        for rank in later.evidence.ranks
    )
    node = replace(
        later.evidence, trigger=earlier.evidence.trigger, accused=earlier.evidence.accused, ranks=ranks
    )
    return replace(later, evidence=node)


def _nothing(place: Place, trigger: str) -> NodeEvidence:
    """Where no evidence could be had: the report still tells how the ranks ended."""
    from holdfast.incidents.taking import without_evidence

    return replace(without_evidence(place, trigger), notes=(NOTHING,))
