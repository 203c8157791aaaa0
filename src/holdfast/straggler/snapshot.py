"""What one rank measured between two reports, in the forms in which it is compared, sent and reported.

Summaries are in the units that users see (milliseconds of sections, microseconds of kernels); what travels is in
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .exchange import ABSENT, Figures, Own, key
from .gpu_facts import UNKNOWN
from .kernels.names import is_rooted
from .kernels.source import KernelWindow
from .scores import medians, weights
from .statistic import Statistic, Summary

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
