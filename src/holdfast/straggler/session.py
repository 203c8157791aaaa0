"""One use of the detector, from `initialize` to `shutdown`: sections, their scores, the talk with the other ranks.

What always holds: with individual scores only and no gathering, nothing is ever sent to another rank.
Does not cover: reports from several threads at once; as other collectives, they are made one after another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from .exchange.channel import Alone, Channel, GroupChannel, distributed, rank_alone
from .exchange.protocol import Exchange, References
from .exchange.rows import figures
from .interval import ReportInterval
from .kernels.source import Capture, KernelSource, NoKernels
from .report import Report
from .scores import Best, gpu_score, medians, section_scores, weights
from .sections import Plans, Sections
from .statistic import Summary
from .verdicts import NOT_GATHERED, Judged, Verdicts
from .wrapping import Wrapped

if TYPE_CHECKING:
    from .settings import Settings

log = logging.getLogger("holdfast.straggler")
Summaries = Mapping[str, Summary]
Times = Mapping[str, float]
Named = tuple[dict[int, float], dict[str, dict[int, float]]]
"""Scores: rank to the GPU's, and section to rank to the section's."""


class Session:
    """What `Detector` holds between `initialize` and `shutdown`."""

    def __init__(
        self,
        settings: Settings,
        plain: Plans,
        capturing: Plans,
        source: KernelSource | None = None,
        channel: Channel | None = None,
    ) -> None:
        """`plain` and `capturing` are those of `Sections`. Without a channel, it is torch.distributed's, if any."""
        self.settings = settings
        self._source = source or NoKernels()
        capture = Capture(source) if source and source.name != NoKernels.name else None
        self.sections = Sections(settings.profiling_interval, capture, plain, capturing)
        self.wrapped = Wrapped(self.sections)
        self.verdicts = Verdicts(settings.groups, settings.thresholds)
        self._interval = ReportInterval(settings.report_time_interval, settings.profiling_interval)
        self.interval_elapsed = False
        self._best_sections, self._best_kernels = Best(), Best()
        self._channel = channel
        self._talk: tuple[Channel, Exchange] | None = None

    def close(self) -> None:
        """End: callables are what they were, sections are no longer measured."""
        self.wrapped.restore()
        self.sections.close()
        self._source.close()

    def step(self) -> Report | None:
        """Count a step; the report, if one is due and it is this rank's to have."""
        interval = self._interval
        interval.step(monotonic())
        if not interval.agreed:
            estimate = interval.estimate()
            if estimate is not None:
                interval.agree(self._exchange.most_steps(estimate) if self._collective else estimate)
        self.interval_elapsed = interval.due()
        if not self.interval_elapsed:
            return None
        report = self.report()
        interval.resume(monotonic())
        return report

    def report(self) -> Report | None:
        """The report of the time since the last one. Collective, unless scores are individual and not gathered."""
        started = perf_counter()
        sections, kernels = self.sections.take(), self._source.take().compute
        found = self._scores(sections, kernels)
        if found is None:
            return None
        nodes, relative, individual, judged = found
        return Report(
            gpu_relative_perf_scores=relative[0],
            section_relative_perf_scores=relative[1],
            gpu_individual_perf_scores=individual[0],
            section_individual_perf_scores=individual[1],
            rank_to_node=nodes,
            local_section_summaries=sections,
            local_kernel_summaries=kernels,
            generate_report_elapsed_time=(perf_counter() - started) * 1e3,
            gather_on_rank0=self.settings.gather_on_rank0,
            rank=self._rank,
            kernel_source=self._source.name,
            withheld=judged.withheld,
            _verdicts=judged.verdicts,
        )

    def _scores(
        self, sections: Summaries, kernels: Summaries
    ) -> tuple[dict[int, str], Named, Named, Judged] | None:
        """The nodes, the scores, relative and individual, and the verdicts of all ranks that this rank reports on."""
        times, kernel_times = medians(sections), medians(kernels)
        references = self._references(times, kernel_times)
        gpu = kernel_times, weights(kernels)
        if not self.settings.gather_on_rank0:
            names = tuple(times)
            own = self._own_scores(names, times, gpu, references)
            relative, individual = self._named(names, [{self._rank: score} for score in own])
            return {self._rank: self.settings.node_name}, relative, individual, NOT_GATHERED
        names = references.sections  # the same on all ranks, so that scores need no names
        nodes = self._exchange.nodes()
        own = self._own_scores(names, times, gpu, references)
        gathered = self._exchange.gather(own, figures(names, sections))
        if gathered is None or nodes is None:
            return None
        scores, measured = gathered
        relative, individual = self._named(names, scores)
        return nodes, relative, individual, self.verdicts.of(names, nodes, measured)

    @property
    def _collective(self) -> bool:
        return self.settings.relative or self.settings.gather_on_rank0

    def _references(self, sections: Mapping[str, float], kernels: Mapping[str, float]) -> References:
        if not self._collective:
            found = References({}, {}, (), self._interval.estimate())
        else:
            found = self._exchange.references(
                sections, kernels, self._interval.estimate(), self.settings.relative
            )
        if found.steps is not None:
            self._interval.agree(found.steps)
        return found

    def _own_scores(
        self, names: tuple[str, ...], times: Times, gpu: tuple[Times, Times], references: References
    ) -> list[float]:
        """This rank's scores: of those asked for, relative before individual, the GPU's before the sections'.
        `gpu` has the median and the weight of each kernel."""
        best_sections = self._best_sections.update(times)
        best_kernels = self._best_kernels.update(gpu[0])
        scores: list[float] = []
        if self.settings.relative:
            scores.append(gpu_score(*gpu, references.kernel_times))
            scores += section_scores(names, times, references.section_times).values()
        if self.settings.individual:
            scores.append(gpu_score(*gpu, best_kernels))
            scores += section_scores(names, times, best_sections).values()
        return scores

    def _named(self, names: tuple[str, ...], gathered: list[dict[int, float]]) -> list[Named]:
        """Relative and individual scores, each of the GPU and of the sections; empty where not asked for."""
        rows = iter(gathered)
        found: list[Named] = []
        for asked in (self.settings.relative, self.settings.individual):
            if not asked:
                found.append(({}, {}))
                continue
            gpu = next(rows)
            found.append((gpu, {name: next(rows) for name in names}))
        return found

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
            channel = self._channel or self._find_channel()
            self._talk = channel, Exchange(channel, self.settings.node_name)
        return self._talk

    def _find_channel(self) -> Channel:
        if self.settings.process_group is not None or distributed():
            return GroupChannel(self.settings.process_group)
        rank, ranks = rank_alone(), os.environ.get("WORLD_SIZE", "1")
        if self._collective and ranks != "1":
            log.warning(
                "this is rank %d of %s, but torch.distributed is not initialised: its straggler reports are about "
                "itself only. Call init_process_group() before the first report",
                rank,
                ranks,
            )
        return Alone(rank)
