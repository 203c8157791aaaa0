"""One use of the detector, from `initialize` to `shutdown`: sections, their scores, the talk with the other ranks.

What always holds: with individual scores only and no gathering, nothing is ever sent to another rank.
In the background, what is measured is taken on the calling thread, and everything else is the reports' thread's.
Does not cover: reports from several threads at once; as other collectives, they are made one after another.
"""

from __future__ import annotations

from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from .background import Background, begin
from .exchange.channel import Channel, find
from .exchange.protocol import Exchange, References
from .instruments import Instruments
from .interval import ReportInterval
from .keeping import Keeping
from .kernels.source import KernelSource, NoKernels
from .labels import own_label
from .report import Report
from .scoring import Named, Scoring, scored_share
from .snapshot import Snapshot
from .verdicts import NOT_GATHERED, Judged, Verdicts

if TYPE_CHECKING:
    from .settings import Settings

Found = tuple[dict[int, str], tuple[Named, Named], Judged]
"""The node of each rank, relative and individual scores, verdicts."""


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
        self._instruments = Instruments(settings.profiling_interval, source or NoKernels())
        self.sections, self.wrapped = self._instruments.sections, self._instruments.wrapped
        self._keeping = Keeping(settings.run_dir, settings.state_file, settings.node_name)
        self.verdicts = Verdicts(settings.groups, settings.thresholds, self._keeping.state)
        self._scoring = Scoring(settings.relative, settings.individual)
        self._interval = ReportInterval(settings.report_time_interval, settings.profiling_interval)
        self.interval_elapsed = False
        self._channel = channel
        self._talk: tuple[Channel, Exchange] | None = None
        self._background: Background[Report] | None = None

    def close(self) -> None:
        """End: callables are what they were, sections are no longer measured."""
        if self._background is not None:
            self._background.close()
        self._instruments.close()
        self._keeping.close()

    def step(self) -> Report | None:
        """Count a step; the report, if one is due and it is this rank's to have."""
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
        report = self.report()
        interval.resume(monotonic())
        return report

    @property
    def quiet_steps(self) -> int:
        """How many of the next steps need no `step`: they may be told by `pass_over`, later and together."""
        return self._interval.quiet

    def pass_over(self, steps: int) -> None:
        """So many steps were not told to `step`; no more than `quiet_steps` said, or the report comes late."""
        self._interval.pass_over(steps)

    def report(self) -> Report | None:
        """The report of the time since the last one. Collective, unless scores are individual and not gathered.

        In the background, the newest that is finished.
        """
        mine = self._instruments.take(self._interval.estimate())
        background = self._beside()
        if background is None:
            return self._made(mine)
        background.hand_over(partial(self._made, mine))
        return background.newest()

    def _made(self, mine: Snapshot) -> Report | None:
        started = perf_counter()
        references = self._references(mine)
        found = (
            self._gathered(mine, references)
            if self.settings.gather_on_rank0
            else self._alone(mine, references)
        )
        if found is None:
            return None
        nodes, (relative, individual), judged = found
        report = Report(
            gpu_relative_perf_scores=relative.gpu,
            section_relative_perf_scores=relative.sections,
            gpu_individual_perf_scores=individual.gpu,
            section_individual_perf_scores=individual.sections,
            rank_to_node=nodes,
            local_section_summaries=mine.sections,
            local_kernel_summaries=mine.kernels.compute,
            generate_report_elapsed_time=(perf_counter() - started) * 1e3,
            gather_on_rank0=self.settings.gather_on_rank0,
            rank=self._rank,
            local_collective_summaries=mine.kernels.collectives,
            kernel_source=self._instruments.source.name,
            kernel_source_reason=self._instruments.source.reason,
            kernel_note=mine.kernels.note,
            kernel_records=mine.kernels.records,
            kernel_records_dropped=mine.kernels.dropped,
            gpu_time_scored=scored_share(mine.kernel_weights, references.kernel_times),
            withheld=judged.withheld,
            _verdicts=judged.verdicts,
        )
        self._keeping.keep(report)
        return report

    def _alone(self, mine: Snapshot, references: References) -> Found:
        """This rank's own scores."""
        names = tuple(mine.section_times)
        own = self._scoring.own(names, mine, references)
        rank = self._rank
        scores = self._scoring.named(names, [{rank: score} for score in own])
        return {rank: self.settings.node_name}, scores, NOT_GATHERED

    def _gathered(self, mine: Snapshot, references: References) -> Found | None:
        """On rank 0 the scores of all ranks, and verdicts; None elsewhere."""
        # The same on all ranks, so that scores need no names.
        names = tuple(name for name in references.sections if name not in references.waiting)
        identities = self._exchange.identities()
        own = self._scoring.own(names, mine, references)
        columns = mine.columns(references.sections, references.judged)
        gathered = self._exchange.gather(own, columns, mine.extras())
        if gathered is None or identities is None:
            return None
        nodes = identities.nodes
        scores = self._scoring.named(names, gathered.scores(tuple(nodes)))
        return (
            nodes,
            scores,
            self.verdicts.of(nodes, references, gathered, tuple(mine.losses), identities.labels),
        )

    @property
    def _collective(self) -> bool:
        return self.settings.relative or self.settings.gather_on_rank0

    def _references(self, mine: Snapshot) -> References:
        if not self._collective:
            found = References({}, {}, steps=mine.steps)
        else:
            found = self._exchange.references(mine.own(), mine.steps, self.settings.relative)
        # In the background ranks get to know it in different steps, and `is_interval_elapsed` is the same on all.
        if found.steps is not None and self._background is None:
            self._interval.agree(found.steps)
        return found

    def _most_steps(self, estimate: float) -> float | None:
        """What all ranks agree on as steps between reports; None if they cannot."""
        if not self._collective:
            return estimate
        background = self._beside()
        if background is None:
            return self._exchange.most_steps(estimate)
        return background.ask(lambda: self._exchange.most_steps(estimate))

    def _beside(self) -> Background[Report] | None:
        """What makes reports in the background, if that is asked for and there is anybody to talk to."""
        if self._background is None and self.settings.background and self._collective:
            self._background = begin(lambda: self._met()[0])
        return self._background

    @property
    def _rank(self) -> int:
        channel = self._met()[0]
        return channel.ranks[channel.rank]

    @property
    def _exchange(self) -> Exchange:
        return self._met()[1]

    def _met(self) -> tuple[Channel, Exchange]:
        """The others, looked for when they are first needed: the process group may be made after `initialize`."""
        if self._talk is None:
            channel = self._channel or find(
                self.settings.process_group,
                self._collective,
                own=self.settings.background and self._collective,
            )
            label = own_label(self.settings.groups) or ""
            self._talk = channel, Exchange(channel, self.settings.node_name, label)
        return self._talk
