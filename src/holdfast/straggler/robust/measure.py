"""One window in numbers: the level of each rank in everything that can be slow, and its distance from the group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .groups import Codes, members_of
from .lateness import lateness
from .pooled import Pools
from .reference import reference_of, sample_size
from .sections import section_levels
from .significance import center_and_spread, critical
from .slowdown import gpu_levels
from .spreads import Spreads
from .thresholds import Thresholds
from .window import COLLECTIVE, KERNEL, SECTION, Array, Window, selector

GPU_SPREAD, SECTION_SPREAD, LATE_SPREAD, LOSS_SPREAD = 0.015, 0.05, 0.01, 0.01
"""The least spread between healthy ranks that is believed: of GPU levels, of section levels, of the share of late time
and of the time that a host lost.
A handful of ranks can agree better by chance; the wall time of a section on a shared host never does."""

GPU_LEVEL = "gpu"
"""The name of the GPU's level where levels go by name."""


def section_key(name: str) -> str:
    """The name of a section's level where levels go by name; no section can be taken for the GPU."""
    return f"section {name}"


@dataclass(frozen=True)
class Rules:
    """What levels are judged by."""

    thresholds: Thresholds
    spreads: Spreads
    pools: Pools

    def forget(self) -> None:
        """Start anew: what was usual is usual no more."""
        self.spreads.forget()
        self.pools.forget()


@dataclass
class Measure:
    """Levels of one thing, [ranks]: logarithms of time over the group's reference, NaN where there is none."""

    name: str
    level: Array
    z: Array
    """Robust z of the level among the ranks of the group."""
    critical: Array
    """The z that noise hardly ever reaches in this rank's group."""
    pooled: Array
    """How far the last windows taken together pass the thresholds; 1 is just, 0 where they were not."""
    windows: int = 0
    """How many those are."""

    @classmethod
    def empty(cls, name: str, ranks: int) -> Measure:
        """Nothing is known of any rank."""
        level, z, limit = np.full((3, ranks), np.nan)
        return cls(name, level, z, limit, np.zeros(ranks))

    def fill(self, members: NDArray[np.intp], level: Array, floor: float | Array, rules: Rules) -> None:
        """Take over the levels of one group [members]; levels are centred, so that the median rank has 0. `floor`
        is the least spread that is believed, of all or of each."""
        known = level[np.isfinite(level)]
        if len(known) < rules.thresholds.min_ranks:
            return
        center, spread = center_and_spread(known)
        self.level[members] = level - center
        believed, windows = rules.spreads.believed((self.name, members[0]), spread, float(np.min(floor)))
        self.z[members] = self.level[members] / np.maximum(believed, floor)
        self.critical[members] = critical(len(known), rules.thresholds.error_rate, windows)

    def pool(
        self, members: NDArray[np.intp], level: Array, floor: float, effect: float, rules: Rules
    ) -> None:
        """Take the levels of one group [members] together with those of the last windows."""
        key = (self.name, members[0])
        self.pooled[members] = rules.pools.margin(key, level, floor, effect, rules.thresholds)
        self.windows = max(self.windows, rules.pools.windows(key))

    def margin(self, min_effect: float) -> Array:
        """How far each rank passes effect size and significance [ranks]: 1 is just, 0 where nothing is known."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.minimum(self.z / self.critical, self.level / min_effect), nan=0.0)


@dataclass
class SectionMeasure:
    """One section on all ranks."""

    median: Measure
    mean: Measure
    """Of the mean time per call; only looked at where a host's losses could explain it."""
    excess: Array
    """Seconds above the group's mean per call in this window [ranks]."""
    cost: Array
    """The excess as a share of the window's time, or of the longest section where that is more [ranks]."""

    @classmethod
    def empty(cls, name: str, ranks: int) -> SectionMeasure:
        """Nothing is known of any rank."""
        key = section_key(name)
        median, mean = Measure.empty(key, ranks), Measure.empty(f"mean of {key}", ranks)
        return cls(median, mean, np.zeros(ranks), np.zeros(ranks))


@dataclass
class Measured:
    """One window of all ranks."""

    codes: Codes
    groups: list[NDArray[np.intp]]
    """The ranks of each group."""
    gpu: Measure
    late: Measure
    """Its level is not a logarithm: seconds that the median rank waits more than this one, step after step."""
    mean_late: Measure
    """The same with rare long pauses; only looked at where a host's losses could explain it."""
    busy: Array
    """Seconds of the group's median rank [ranks] in kernels and collectives, or in sections where that is more."""
    sections: dict[str, SectionMeasure]
    losses: dict[str, Measure]
    """Of what hosts lost, by cause. Levels are no logarithms: seconds beyond what the median rank lost."""

    @property
    def pooled_windows(self) -> int:
        """How many windows were taken together."""
        return max((self.late.windows, *(section.median.windows for section in self.sections.values())))


def measure(window: Window, codes: Codes, rules: Rules) -> Measured:
    """Compare the ranks inside each group."""
    ranks = window.ranks
    names = [window.keys[column] for column in window.columns[SECTION]]
    measured = Measured(
        codes,
        members_of(codes),
        Measure.empty(GPU_LEVEL, ranks),
        Measure.empty("late", ranks),
        Measure.empty("mean late", ranks),
        np.zeros(ranks),
        {name: SectionMeasure.empty(name, ranks) for name in names},
        {cause: Measure.empty(f"lost by {cause}", ranks) for cause in window.host_losses},
    )
    for members in measured.groups:
        if len(members) < rules.thresholds.min_ranks:
            continue
        _measure_gpu(window, members, rules, measured)
        if names:
            _measure_sections(window, members, rules, measured)
        if not len(window.columns[KERNEL]):
            # All is measured on the host then, all the time. Kernels may be captured in a part of the window only.
            measured.busy[members] = np.maximum(measured.busy[members], _whole(window, members, measured))
        _measure_waits(window, members, rules, measured)
    return measured


def _measure_gpu(window: Window, members: NDArray[np.intp], rules: Rules, measured: Measured) -> None:
    kernels, collectives = selector(window.columns[KERNEL]), selector(window.columns[COLLECTIVE])
    thresholds, least = rules.thresholds, rules.thresholds.min_samples
    size = sample_size(len(measured.groups))
    reference = reference_of(window, members, kernels, collectives, thresholds.min_ranks, least, size)
    level = gpu_levels(window, members, kernels, reference, thresholds.min_keys, least)
    measured.gpu.fill(members, level, max(GPU_SPREAD, reference.noise), rules)
    measured.busy[members] = reference.busy


def _measure_sections(window: Window, members: NDArray[np.intp], rules: Rules, measured: Measured) -> None:
    columns, limits = window.columns[SECTION], rules.thresholds
    whole = _whole(window, members, measured)
    found = section_levels(window, members, selector(columns), limits.min_ranks, limits.min_samples, whole)
    for number, column in enumerate(columns):
        section = measured.sections[window.keys[column]]
        level, floor = found.level[:, number], np.maximum(SECTION_SPREAD, found.noise[:, number])
        section.median.fill(members, level, floor, rules)
        section.median.pool(members, level, SECTION_SPREAD, limits.min_effect, rules)
        if window.host_losses:
            section.mean.fill(members, found.mean_level[:, number], SECTION_SPREAD, rules)
        section.excess[members] = found.excess[:, number]
        section.cost[members] = found.cost[:, number]
    # Sections may lie within each other, so the sum can be too large: then less time counts as lost.
    measured.busy[members] = np.maximum(measured.busy[members], np.sum(found.seconds))


def _whole(window: Window, members: NDArray[np.intp], measured: Measured) -> float:
    """Seconds that this window took the group; where nobody says, what its kernels and collectives took. These run
    side by side on a GPU, and are no measure where the time is known."""
    elapsed = np.empty(0) if window.elapsed is None else np.asarray(window.elapsed[members], float)
    known = elapsed[np.isfinite(elapsed)]
    return float(np.median(known)) if len(known) else float(measured.busy[members[0]])


def _measure_waits(window: Window, members: NDArray[np.intp], rules: Rules, measured: Measured) -> None:
    """What is compared with the time that the ranks are busy."""
    limits, busy = rules.thresholds, float(measured.busy[members[0]])
    if len(window.columns[COLLECTIVE]):
        collectives = selector(window.columns[COLLECTIVE])
        late = lateness(window, members, collectives, limits.min_ranks, limits.min_samples)
        floor = max(LATE_SPREAD * busy, 1e-9)
        measured.late.fill(members, late.usual, floor, rules)
        if window.host_losses:
            measured.mean_late.fill(members, late.mean, floor, rules)
        if busy > 0:
            measured.late.pool(members, late.usual / busy, LATE_SPREAD, limits.min_late_share, rules)
    for cause, seconds in window.host_losses.items():
        lost = np.asarray(seconds[members], float)
        measured.losses[cause].fill(members, lost, max(LOSS_SPREAD * busy, 1e-9), rules)
