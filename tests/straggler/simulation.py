"""Simulated windows of a job: what ranks would measure, without a rank. The seed decides everything.

A rank's median of a kernel is: the kernel's own time x the chip's standing spread x this window's noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.straggler.judge import Judge, Judgement
from holdfast.straggler.window import Window

Array = np.ndarray[Any, np.dtype[Any]]
CALLS = 200


@dataclass
class Job:
    """A job of `ranks`, 8 to a node, with kernels, sections and collectives."""

    ranks: int
    seed: int = 0
    kernels: int = 500
    noise: float = 0.05
    """Standard deviation of each kernel's median, each window anew."""
    chip_spread: float = 0.01
    """Standard deviation between healthy chips, the same in every window."""
    sections: tuple[str, ...] = ("data_loading", "forward", "backward", "optimizer", "step")
    section_noise: float = 0.05
    collectives: int = 0
    missing: float = 0.0
    """Chance that a rank lacks a kernel in a window."""
    factor: Array = field(default_factory=lambda: np.ones(1))
    """Each rank's kernels take this many times as long [ranks]."""
    section_factor: dict[str, Array] = field(default_factory=dict)
    late: Array | None = None
    """Seconds per call of the collectives by which each rank arrives late [ranks]."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.chip = np.exp(self.rng.normal(0, self.chip_spread, (self.ranks, 1))).astype(np.float32)
        # From microseconds to tens of milliseconds: few kernels make most of the time, as in training.
        self.times = np.exp(self.rng.normal(-9, 1.5, self.kernels)).astype(np.float32)

    def window(self) -> Window:
        """The next window."""
        kernels = self.times * self.chip * self._noise(self.noise, self.kernels)
        kernels *= np.reshape(self.factor, (-1, 1)).astype(np.float32)
        if self.missing:
            kernels[self.rng.random(kernels.shape) < self.missing] = np.nan
        sections = 0.05 * self._noise(self.section_noise, len(self.sections))
        for name, factor in self.section_factor.items():
            sections[:, self.sections.index(name)] *= factor
        tables = [kernels, sections, self._collectives()]
        medians = np.concatenate(tables, axis=1)
        keys = [f"k{n}" for n in range(self.kernels)] + list(self.sections)
        keys += [f"nccl{n}" for n in range(self.collectives)]
        kinds = [kind for kind, table in zip(("kernel", "section", "collective"), tables, strict=True)
                 for _ in range(table.shape[1])]  # fmt: skip
        counts = np.full(medians.shape, CALLS, np.int32)
        counts[np.isnan(medians)] = 0
        nodes = [f"n{rank // 8}" for rank in range(self.ranks)]
        return Window(keys, kinds, nodes, medians, np.nan_to_num(medians) * counts, counts)

    def _noise(self, sigma: float, keys: int) -> Array:
        return np.exp(sigma * self.rng.standard_normal((self.ranks, keys), dtype=np.float32))

    def _collectives(self) -> Array:
        """All wait for the last: who arrives late by d sees d less of the collective than a rank in time."""
        late = np.zeros(self.ranks) if self.late is None else self.late
        waits = (late.max() - late)[:, None] + 0.002
        return (waits * self._noise(0.05, self.collectives)).astype(np.float32)


def factors(ranks: int, slow: dict[int, float]) -> Array:
    """1 for every rank but these."""
    result = np.ones(ranks)
    for rank, factor in slow.items():
        result[rank] = factor
    return result


def assess(job: Job, windows: int, judge: Judge | None = None) -> Iterator[Judgement]:
    """What a judge says after each of the next windows."""
    judge = judge or Judge()
    for _ in range(windows):
        yield judge.add(job.window())


def blamed(judgement: Judgement) -> list[int]:
    """The ranks with a verdict."""
    return sorted(rank for verdict in judgement.verdicts for rank in verdict.ranks)


def changed(window: Window, **columns: Any) -> Window:
    """The window with other tables."""
    return replace(window, **columns)
