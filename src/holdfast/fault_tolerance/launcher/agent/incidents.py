"""The incidents of one node: evidence while there still is some, the report when nobody waits any more.

Evidence after a hang is the monitor's and is read from its file; after a crash, and when another node tells of
trouble, it is taken here before this node's ranks are stopped. What always holds: it costs a restart no more than
`AFTER_CRASH` seconds, or `ASKED` where ranks have to be asked because the culprit may be among them; an error here
costs a report, nothing else. What it needs is imported once ranks train: a launcher starts without.
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

from ...processes import proc
from ..ranks.failures import Failure
from ..ranks.group import RankGroup
from .surroundings import Surroundings

if TYPE_CHECKING:
    from holdfast.incidents.evidence import NodeEvidence
    from holdfast.incidents.gathering.local_rank import Known
    from holdfast.incidents.gathering.memory import OomWatch
    from holdfast.incidents.taking import Taken

    from .incident_report import Reporter

AFTER_CRASH = 0.02  # seconds
ASKED = 1.0  # seconds; typically 0.1
NOTHING = "No evidence could be taken in time: what stands here is how the ranks ended."
FOR_MEMORY = 0.2  # seconds for a look at the kernel's counts that is still under way


class Incidents:
    """What is known of the incident of the cycle that runs, until its report is under way."""

    def __init__(self, agent: Surroundings, run_dir: str, run_id: str) -> None:
        self._agent = agent
        self._run_id = run_id
        self._run_dir = run_dir
        self._reporter: Reporter | None = None
        self._place = Place()
        self._taken: Taken | None = None
        self._under_way: UnderWay[Taken] | None = None
        self._said: tuple[str, int | None] = ("", None)
        self._file = ""
        self._told = False
        self._began = 0.0
        self._memory: OomWatch | None = None
        self._counts: UnderWay[OomWatch] | None = None

    def begin_cycle(self, world_size: int) -> None:
        """A cycle begins: say to the monitor where its ranks stand, and forget the last one."""
        agent = self._agent
        number, nodes = agent.node_place
        cycle = agent.job.record.cycle
        self._place = Place(agent.node, number, nodes, world_size, self._run_id, cycle)
        self._forget_file()
        self._taken, self._under_way, self._said = None, None, ("", None)
        self._told, self._began = False, time.time()
        self._forget_memory()
        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._counts = UnderWay(self._prepared)
        with contextlib.suppress(OSError):
            self._place.leave(os.path.dirname(agent.boards.path(0)))

    @staticmethod
    def _prepared() -> OomWatch:
        """Beside the start of the ranks: the kernel's counts, then the modules that an incident needs."""
        from holdfast.incidents.gathering.memory import OomWatch

        watch = OomWatch()
        from holdfast.incidents import rules

        from . import incident_ends, incident_report

        del incident_ends, incident_report, rules
        return watch

    def heard(self, verdict: dict[str, Any], *, old: bool) -> None:
        """The monitor has a verdict on a hang, and has kept its evidence; `old`: in a cycle that is over.

        What it says is for everybody's eyes afterwards: secrets are taken out of it.
        """
        file = str(verdict.pop("evidence", ""))
        sentence = verdict.pop("sentence", "")
        if old and file:
            with contextlib.suppress(OSError):
                os.unlink(file)
        elif not old:
            self._forget_file()
            self._file, self._under_way = file, None
            self._said = str(verdict.get("cause")), verdict.get("culprit")
        if sentence:
            from holdfast.incidents.report.redaction import redacted_text

            verdict["sentence"] = redacted_text(sentence, os.environ)

    def crashed(self, rank: int) -> None:
        """The first rank has ended: what there is on the others, while they are still there."""
        if self._taken is None and not self._file:
            self._take("crash", rank, AFTER_CRASH, ask=False, share=0.5)

    def elsewhere(self) -> None:
        """Another node was first to tell of trouble, and the culprit may be one of ours: ask them before they go."""
        if not self._file and not (self._taken and self._taken.evidence.trigger == "elsewhere"):
            self._take("elsewhere", None, ASKED, ask=True, share=0.9)

    def _take(self, trigger: str, accused: int | None, seconds: float, *, ask: bool, share: float) -> None:
        """`share` of the time is for the looking, the rest for what has to be done with it."""
        from holdfast.incidents.gathering.local_rank import opened
        from holdfast.incidents.taking import take

        group = self._agent.group
        if group is None:
            return
        now = time.monotonic()
        folder, ranks = os.path.dirname(self._agent.boards.path(0)), self._known(group)
        place, occasion = self._place, Occasion(trigger, accused)

        def work() -> Taken:
            with opened(folder, place.node, ranks) as local:
                pause = 0.05 if ask else 0.0
                until = now + share * seconds
                return take(local, place, occasion, until, ask=ask, pause=pause, judge=False)

        with contextlib.suppress(TooLate, RuntimeError):  # or no thread can be started
            self._finish()  # what was too late before
            self._under_way = UnderWay(work)
            self._finish(seconds)

    def _finish(self, seconds: float = 0.0) -> None:
        """Take over what is under way, if it is done within so many seconds; it may be asked for again later."""
        if self._under_way is not None:
            with contextlib.suppress(TooLate):
                taken, self._under_way = self._under_way.answer(seconds), None
                self._taken = taken if self._taken is None else _both(self._taken, taken)

    def _known(self, group: RankGroup) -> list[Known]:
        boards = self._agent.boards.snapshots()
        found = []
        for local_rank in group.local_ranks:
            pid = group.pid_of(local_rank)
            identity = boards[local_rank].identity if local_rank in boards else None
            started = identity.start_time if identity else proc.start_time(pid) or 0
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
    ) -> None:
        """The ranks have ended: complete the evidence and have the report made, once a cycle, by node `reporter`.

        Returns at once: reading the monitor's evidence and the kernel's counts is left to the report's thread.
        """
        if self._told:
            return
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

        self._reporter = self._reporter or Reporter(self._agent, self._run_dir)
        self._reporter.begin(complete, self._place, told)

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
            with contextlib.suppress(OSError):
                os.unlink(self._file)
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
