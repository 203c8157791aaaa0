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
import os
import statistics
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from holdfast.fault_tolerance import environment

from .background import Background
from .channel import OwnGroup, find
from .exchange import ABSENT, Channel, Exchange, Gathered, Layout, Snapshot, pack
from .gpu_facts import FIELDS, UNKNOWN, GpuFacts
from .host import CAUSES, HostLosses
from .kernels.source import Capture, KernelSource, KernelWindow
from .labels import own_label
from .log_texts import Failures, VerdictNews, log_ended
from .report import Report
from .scores import Own, References, Scoring, scored_share
from .sections import KERNELS, Sections
from .settings import compare
from .state_file import ReportLog, StateFile
from .verdicts import NOT_GATHERED, Verdicts
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .settings import Settings

log = logging.getLogger("holdfast.straggler")

EXTRAS = len(CAUSES) + 1 + len(FIELDS)
"""Numbers of `Snapshot.extras`."""


ESTIMATION_STEPS = 16


class ReportInterval:
    """When the next report is due, counted in steps: all ranks report in the same one without asking each other.

    After `ESTIMATION_STEPS` steps a rank knows how many of its steps make up the interval. The ranks agree on the
    greatest such number once, then again within each report: steps get faster after warm-up, slower with longer
    sequences. Times are seconds of a monotonic clock. Does not cover: ranks that do not call in the same steps.
    """

    def __init__(self, seconds: float, least_steps: int) -> None:
        """`seconds` between reports, 0 for as often as possible; never fewer than `least_steps` between two, so that
        something was measured."""
        self._seconds = seconds
        self._least_steps = least_steps
        self._lengths: deque[float] = deque(maxlen=ESTIMATION_STEPS)
        self._began: float | None = None
        self._step = 0
        self._steps: int | None = None
        self._due_at = 0

    @property
    def agreed(self) -> bool:
        """Whether the ranks have agreed on a number of steps."""
        return self._steps is not None

    def step(self, now: float) -> None:
        """A step begins."""
        if self._began is not None:
            self._lengths.append(now - self._began)
        self._began = now
        self._step += 1

    def resume(self, now: float) -> None:
        """A report was made within this step, which must not make the step look long."""
        self._began = now

    def estimate(self) -> float | None:
        """How many of this rank's steps make up the interval; None while it has seen too few."""
        if len(self._lengths) < ESTIMATION_STEPS:
            return None
        return self._seconds / max(statistics.median(self._lengths), 1e-9)

    def agree(self, greatest: float) -> None:
        """All ranks agreed on the greatest estimate."""
        steps = max(int(greatest), self._least_steps)
        if self._steps is None:
            self._due_at = -(-self._step // steps) * steps
        self._steps = steps

    def due(self) -> bool:
        """Whether a report belongs to this step. The next one is then counted from here."""
        if self._steps is None or self._step < self._due_at:
            return False
        self._due_at = self._step + self._steps
        return True


class Session:
    """What `Detector` holds between `initialize` and `shutdown`."""

    def __init__(
        self,
        settings: Settings,
        source: KernelSource | None = None,
        channel: Channel | None = None,
        host: HostLosses | None = None,
    ) -> None:
        """Without a channel, it is torch.distributed's, if any; `host` is what this thread loses to its host."""
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
        self._host, self._gpu = host or HostLosses(), GpuFacts()
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
        parts = (self._background, self._capture, self._host, self._gpu, self._reports, self._state)
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
            path = self.settings.state_file
            if path is None and run_dir is not None:
                path = os.path.join(run_dir, f"straggler-state.rank-{rank}.npz")
            self._state = StateFile(path) if path else None
        return self._state

    # -- the other ranks -------------------------------------------------------------------------------------------

    def _beside(self) -> Background[Report] | None:
        """What makes reports in the background, if that is asked for and there is anybody to talk to."""
        wanted = self.settings.background and self._collective and not self._ended
        if self._background is None and wanted:
            try:
                channel = self._met()[0]
            except Exception as error:
                self._end(error)
                return None
            self._background = Background(channel) if isinstance(channel, OwnGroup) else None
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
