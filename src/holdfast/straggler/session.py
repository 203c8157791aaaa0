"""One use of the detector, from `initialize` to `shutdown`: what is measured, exchanged, scored, judged and kept.

What always holds: with individual scores only and no gathering, nothing is ever sent to another rank. No failure here
is raised into the training. A rank that cannot measure or score takes part in the exchange all the same, with unknown
values, because the others wait for it. Only a collective that failed ends the reports; steps are still counted, so that
`interval_elapsed` stays the same on all ranks.
In the background, what is measured is taken on the calling thread, and everything else is the reports' thread's.
Does not cover: reports from several threads at once; as other collectives, they are made one after another.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from holdfast.fault_tolerance import environment

from .background import Background, begin
from .channel import find
from .exchange import ABSENT, Channel, Exchange, Figures, Gathered, Layout, Own, References, key, pack
from .gpu_facts import FIELDS, UNKNOWN, GpuFacts
from .host import CAUSES, HostLosses
from .interval import ReportInterval
from .kernels.names import is_rooted
from .kernels.source import Capture, KernelSource, KernelWindow
from .labels import own_label
from .log_texts import Failures, VerdictNews, log_ended
from .report import Report
from .scores import Scoring, Statistic, Summary, medians, scored_share, weights
from .sections import KERNELS, Sections
from .settings import compare
from .state_file import ReportLog, StateFile, in_run_dir
from .verdicts import NOT_GATHERED, Verdicts
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .settings import Settings

log = logging.getLogger("holdfast.straggler")

EXTRAS = len(CAUSES) + 1 + len(FIELDS)
"""Numbers of `Snapshot.extras`."""


class Session:
    """What `Detector` holds between `initialize` and `shutdown`."""

    def __init__(
        self,
        settings: Settings,
        source: KernelSource | None = None,
        channel: Channel | None = None,
    ) -> None:
        """Without a channel, it is torch.distributed's, if any."""
        self.settings = settings
        self._failures = Failures()
        self._compared = compare(settings)
        self._source = source or KernelSource()
        self._capture = Capture(self._source)
        nothing = type(self._source) is KernelSource
        self.sections = Sections(
            settings.profiling_interval, None if nothing else self._capture, self._failures
        )
        self.wrapped = Wrapped(self.sections)
        self._host, self._gpu = HostLosses(), GpuFacts()
        self._scoring = Scoring(settings.relative, settings.individual)
        self.verdicts = Verdicts(settings.groups, settings.thresholds, self._state_of)
        self._news = VerdictNews()
        self._reports: ReportLog | None = None
        self._state: StateFile | None = None
        self._interval = ReportInterval(settings.report_time_interval, settings.profiling_interval)
        self.interval_elapsed = False
        self._collective = settings.relative or settings.gather_on_rank0
        self._channel = channel
        self._talk: tuple[Channel, Exchange] | None = None
        self._background: Background[Report] | None = None
        self._ended = False
        self._making = Lock()

    def close(self) -> None:
        """End: callables are what they were, sections are no longer measured. What waits for the disk is written, for a
        second at most."""
        parts = (
            self._background,
            self.sections,
            self._capture,
            self._host,
            self._gpu,
            self._reports,
            self._state,
        )
        self.wrapped.restore()
        for part in parts:
            if part is not None:
                self._failures.guarded(f"closing {type(part).__name__}", part.close, None)

    # -- when ------------------------------------------------------------------------------------------------------

    def step(self) -> Report | None:
        """Count a step; the report, if one is due and it is this rank's to have."""
        make = self.begin_step()
        report = None if make is None else make()
        if self.interval_elapsed:
            self._interval.resume(monotonic())
        return report

    def begin_step(self) -> Callable[[], Report | None] | None:
        """Count a step; if a report is due, exchange it. What is returned makes it, see `begin_report`."""
        interval = self._interval
        interval.step(monotonic())
        if not interval.agreed:
            estimate = interval.estimate()
            steps = None if estimate is None else self._most_steps(estimate)
            if steps is not None:
                interval.agree(steps)
        self.interval_elapsed = interval.due()
        if not self.interval_elapsed:
            return None
        make = self.begin_report()
        interval.resume(monotonic())
        return make

    def agreed(self, wish: bool) -> bool:
        """Whether any rank wishes it; all ranks ask in the same step, after a report. False where reports have ended.

        It is one all-reduce more over what the report was exchanged by, so no group is made for it.
        """
        return (self._greatest(float(wish)) or 0.0) > 0

    def _most_steps(self, estimate: float) -> float | None:
        """What all ranks agree on as steps between reports; None if they cannot."""
        if not self._collective:
            return estimate
        background = self._beside()
        if background is not None:
            return background.ask(lambda: self._exchange.greatest(estimate))
        return self._greatest(estimate)

    def _greatest(self, value: float) -> float | None:
        """Over all ranks; None if they cannot talk."""
        if self._ended:
            return None
        try:
            return self._exchange.greatest(value)
        except Exception as error:
            self._end(error)
            return None

    # -- what ------------------------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """The report of the time since the last one. Collective, unless scores are individual and not gathered.

        In the background, the newest that is finished.
        """
        make = self.begin_report()
        return None if make is None else make()

    def begin_report(self) -> Callable[[], Report | None] | None:
        """Exchange what was measured since the last report; None on ranks that have no report.

        What is returned makes the report, in any thread, and once: nothing in it waits for another rank.
        """
        mine = self._take()
        background = self._beside()
        if background is not None:
            background.hand_over(partial(self._made, mine))
            return background.newest
        if self._ended:
            return None
        try:
            return self._exchanged(mine)
        except Exception as error:
            self._end(error)
            return None

    def _end(self, error: Exception) -> None:
        """A collective failed: the ranks do no longer make the same ones."""
        self._ended = True
        log_ended(error)

    def _take(self) -> Snapshot:
        """What this rank measured since the last call."""
        guarded = self._failures.guarded
        kernels = guarded(KERNELS, lambda: self._capture.take().apart(self.sections.waiting), KernelWindow())
        return Snapshot(
            sections=guarded("measuring sections", self.sections.take, {}),
            kernels=kernels,
            waiting=self.sections.waiting,
            losses=guarded("measuring the host", self._host.take, dict.fromkeys(CAUSES, math.nan)),
            elapsed=self._host.elapsed / self.settings.profiling_interval,
            facts=(self._gpu.take() if kernels.records else None) or UNKNOWN,
            steps=self._interval.estimate(),
        )

    def _made(self, mine: Snapshot) -> Report | None:
        """The report, if it is this rank's to have. Raises only where a collective failed."""
        make = self._exchanged(mine)
        return None if make is None else make()

    def _exchanged(self, mine: Snapshot) -> Callable[[], Report | None] | None:
        """What makes the report, if it is this rank's to have. Raises only where a collective failed."""
        started = perf_counter()
        references, gathered = self._references(mine), None
        if self.settings.gather_on_rank0:
            gathered = self._gathered(mine, references)
            if gathered is None:
                return None
        guarded = self._failures.guarded

        def make() -> Report | None:
            with self._making:  # a program may ask for one while another is made in a thread
                report = guarded("a report", lambda: self._report(mine, references, gathered, started), None)
                if report is not None:
                    guarded("keeping a report", lambda: self._keep(report), None)
                return report

        return make

    def _references(self, mine: Snapshot) -> References:
        if not self._collective:
            found = References({}, {}, steps=mine.steps)
        else:
            own = self._failures.guarded("comparing times", lambda: mine.own, Own())
            found = self._exchange.references(own, mine.steps, self.settings.relative)
        # In the background ranks get to know it in different steps, and `is_interval_elapsed` is the same on all.
        if found.steps is not None and self._background is None:
            self._interval.agree(found.steps)
        return found

    def _gathered(self, mine: Snapshot, references: References) -> Gathered | None:
        """On rank 0 the rows of all ranks. A rank that cannot make its own sends one of unknown values."""
        kinds = self.settings.relative + self.settings.individual
        layout = Layout(
            scores=kinds * (1 + len(_scored(references))),
            columns=len(references.sections) + len(references.judged),
            extras=EXTRAS,
        )
        row = self._failures.guarded("scoring", lambda: self._row(mine, references), b"")
        if len(row) != layout.length:
            unknown = [math.nan] * layout.scores, [ABSENT] * layout.columns, [math.nan] * layout.extras
            row = pack(*unknown)
        return self._exchange.gather(row, layout)

    def _row(self, mine: Snapshot, references: References) -> bytes:
        own = self._scoring.own(_scored(references), mine.own, references)
        return pack(own, mine.columns(references.sections, references.judged), mine.extras())

    def _report(
        self, mine: Snapshot, references: References, gathered: Gathered | None, started: float
    ) -> Report:
        channel, exchange = self._met()
        rank, judged = channel.ranks[channel.rank], NOT_GATHERED
        if gathered is None:  # this rank's own scores
            nodes, names = {rank: self.settings.node_name}, tuple(mine.section_times)
            scores = [{rank: score} for score in self._scoring.own(names, mine.own, references)]
        else:
            nodes, names = exchange.identities.nodes, _scored(references)
            scores, labels = gathered.scores(tuple(nodes)), exchange.identities.labels
            judged = self.verdicts.of(nodes, references, gathered, tuple(mine.losses), labels)
        (gpu, sections), (own_gpu, own_sections) = self._scoring.named(names, scores)
        return Report(
            gpu_relative_perf_scores=gpu,
            section_relative_perf_scores=sections,
            gpu_individual_perf_scores=own_gpu,
            section_individual_perf_scores=own_sections,
            rank_to_node=nodes,
            local_section_summaries=mine.sections,
            local_kernel_summaries=mine.kernels.compute,
            generate_report_elapsed_time=(perf_counter() - started) * 1e3,
            gather_on_rank0=self.settings.gather_on_rank0,
            rank=rank,
            local_collective_summaries=mine.kernels.collectives,
            kernel_source=self._source.name,
            kernel_source_reason=self._source.reason,
            kernel_note=mine.kernels.note,
            kernel_records=mine.kernels.records,
            kernel_records_dropped=mine.kernels.dropped,
            gpu_time_scored=scored_share(mine.kernel_weights, references.kernel_times),
            withheld=judged.withheld,
            _verdicts=judged.verdicts,
        )

    # -- where it is kept ------------------------------------------------------------------------------------------

    def _keep(self, report: Report) -> None:
        """Log which verdicts are new or over, and write the report into the journal."""
        for line in self._news.of(report.verdicts(), report.withheld):
            log.warning("%s", line)
        settings = self.settings
        if settings.run_dir is None:
            return
        if self._reports is None:
            cycle = environment.cycle()
            self._reports = ReportLog(settings.run_dir, settings.node_name, report.rank, cycle)
        self._reports.write(report)

    def _state_of(self, rank: int) -> StateFile | None:
        """Where the rank that judges keeps what it knows for the next start. Nothing is opened before."""
        if self._state is None:
            run_dir = self.settings.run_dir
            path = self.settings.state_file or (run_dir and in_run_dir(run_dir, rank))
            self._state = StateFile(path) if path else None
        return self._state

    # -- the other ranks -------------------------------------------------------------------------------------------

    def _beside(self) -> Background[Report] | None:
        """What makes reports in the background, if that is asked for and there is anybody to talk to."""
        if self._background is None and self.settings.background and self._collective:
            self._background = begin(lambda: self._met()[0])
        return self._background

    @property
    def _exchange(self) -> Exchange:
        return self._met()[1]

    def _met(self) -> tuple[Channel, Exchange]:
        """The others, looked for when they are first needed: the process group may be made after `initialize`."""
        if self._talk is None:
            self._compared = self._compared or compare(self.settings)
            channel = self._channel or find(
                self.settings.process_group,
                self._collective,
                own=self.settings.background and self._collective,
            )
            label = own_label(self.settings.groups) or ""
            self._talk = channel, Exchange(channel, self.settings.node_name, label)
        return self._talk


def _scored(references: References) -> tuple[str, ...]:
    """The sections that have scores; the same on all ranks, so that scores need no names."""
    return tuple(name for name in references.sections if name not in references.waiting)


_MS, _US = 1e-3, 1e-6


@dataclass(frozen=True)
class Snapshot:
    """One window of one rank."""

    sections: Mapping[str, Summary]
    kernels: KernelWindow = field(default_factory=KernelWindow)
    waiting: Collection[str] = ()
    """Sections whose bodies wait for other ranks."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the host lost, by cause; the same causes on all ranks."""
    elapsed: float = math.nan
    """Seconds of wall time that this was measured in: where only every n-th run is, an n-th of the window."""
    facts: Sequence[float] = UNKNOWN
    """Of this rank's GPU; see `gpu_facts`."""
    steps: float | None = None
    """The estimate of steps between reports, once there is one."""

    @cached_property
    def section_times(self) -> dict[str, float]:
        """Medians of the sections that are compared."""
        return {name: time for name, time in medians(self.sections).items() if name not in self.waiting}

    @cached_property
    def kernel_times(self) -> dict[int, float]:
        """Medians of the kernels that are compared, by key."""
        return medians(self._compute)

    @cached_property
    def kernel_weights(self) -> dict[int, float]:
        """The time that was spent in each of them."""
        return weights(self._compute)

    @cached_property
    def own(self) -> Own:
        """For the exchange."""
        spent = self.kernel_weights | weights(self._collectives)
        total = math.fsum(spent.values())
        shares = {one: weight / total for one, weight in spent.items()} if total > 0 else {}
        waiting = [name for name in self.sections if name in self.waiting]
        return Own(self.section_times, waiting, self.kernel_times, shares)

    def extras(self) -> tuple[float, ...]:
        """What travels after the columns."""
        return (*self.losses.values(), self.elapsed, *self.facts)

    def columns(self, sections: Iterable[str], kernels: Iterable[int]) -> list[Figures]:
        """What travels of these sections and kernels."""
        summaries = self._compute | self._collectives
        return [_figures(self.sections.get(name), _MS) for name in sections] + [
            _figures(summaries.get(one), _US) for one in kernels
        ]

    @cached_property
    def _compute(self) -> dict[int, Summary]:
        return {key(name): summary for name, summary in self.kernels.compute.items()}

    @cached_property
    def _collectives(self) -> dict[int, Summary]:
        # The others know only keys, so that what says nothing about who is late must be left out here.
        return {
            key(name, True): summary
            for name, summary in self.kernels.collectives.items()
            if not is_rooted(name)
        }


def _figures(summary: Summary | None, unit: float) -> Figures:
    if summary is None:
        return ABSENT
    number = summary[Statistic.NUM]
    return summary[Statistic.MED] * unit, number * summary[Statistic.AVG] * unit, number
