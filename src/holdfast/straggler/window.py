"""What all ranks measured between two reports, and how slow each rank's GPU was in it.

A GPU has one level, from all kernels that its rank shares with its group. For each kernel the group has a reference:
the median over its ranks, its spread, and its share of the time. A rank's level is the mean over kernels of
log(own median / reference), weighted by time, where no kernel counts for more than a few of its usual spreads off the
rank's own middle (one step of Huber's estimator, from a median). So one odd kernel does not make a slow rank, a kernel
that is missing counts for nothing, and a GPU that is slow in everything keeps its full slowdown. A large group's
medians are taken over a sample of its ranks: the cost does not grow with the world.

Does not cover: a GPU that is slow in only a few kernels. Its level stays near 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Selector = slice | NDArray[np.intp]

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution: its deviation over its median absolute deviation."""
KERNEL, SECTION, COLLECTIVE = "kernel", "section", "collective"
KINDS = (KERNEL, SECTION, COLLECTIVE)


@dataclass(frozen=True)
class Window:
    """One window of `ranks` x `keys`.

    `medians` and `totals` are in seconds; a NaN median says that the rank did not measure the key, and `totals` and
    `counts` of such a cell are ignored. float32 halves the time of a large world.
    """

    keys: Sequence[str]
    """Names, one per column."""
    kinds: Sequence[str]
    """"kernel" (compute on the GPU), "section" (wall time) or "collective" (waiting included), one per column."""
    nodes: Sequence[str]
    """Names of the nodes, one per rank."""
    medians: Array
    totals: Array
    counts: Array
    host_losses: Mapping[str, Array] = field(default_factory=dict)
    """Seconds that each rank's host lost in this window, by cause ("garbage collection", "CPU steal"): [ranks]."""
    elapsed: Array | None = None
    """Seconds of wall time that the times of this window were measured in; NaN where unknown: [ranks]. Where only
    every n-th run is measured, an n-th of the time between two reports."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @cached_property
    def columns(self) -> dict[str, NDArray[np.intp]]:
        """The columns of each kind."""
        kinds = np.asarray(self.kinds, dtype=str)
        return {kind: np.flatnonzero(kinds == kind) for kind in KINDS}


def of_rows(
    rows: bytes | bytearray,
    skipped: int,
    columns: Sequence[tuple[str, str]],
    nodes: Sequence[str],
    losses: Sequence[str],
    after: int,
) -> Window:
    """The window in what all ranks sent, without copying it: of each rank `skipped` bytes, then 32-bit floats: the
    medians, totals and counts of all columns (name and kind), the losses, the seconds elapsed, and `after` others.
    ValueError if they are not as many."""
    fields = [(name, "=f4", (len(columns),)) for name in ("medians", "totals", "counts")]
    after += (3 * len(columns) + len(losses) + 1 + after) % 2  # rows are whole words of 8 bytes
    row = np.dtype([("skipped", f"V{skipped}"), *fields, ("extras", "=f4", (len(losses) + 1 + after,))])
    table = np.frombuffer(rows, dtype=row)
    return Window(
        keys=tuple(name for name, _ in columns),
        kinds=tuple(kind for _, kind in columns),
        nodes=tuple(nodes),
        medians=table["medians"],
        totals=table["totals"],
        counts=table["counts"],
        host_losses={cause: table["extras"][:, number] for number, cause in enumerate(losses)},
        elapsed=table["extras"][:, len(losses)],
    )


def selector(indices: NDArray[np.intp]) -> Selector:
    """The same rows or columns as a slice where they lie side by side, so that numpy need not copy them."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices) and np.all(np.diff(indices) == 1):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def cells(table: Array, rows: Selector, columns: Selector) -> Array:
    """These rows and columns of a table [ranks, keys]; a view where both lie side by side."""
    return table[rows][:, columns] if isinstance(rows, slice) else table[:, columns][rows]


def quantile(ordered: Array, known: Array, share: float) -> Array:
    """Of the `known` first values along the last axis, which are sorted; interpolated."""
    place = share * np.maximum(known - 1, 0)[..., None]
    low = np.take_along_axis(ordered, np.floor(place).astype(np.intp), axis=-1)
    high = np.take_along_axis(ordered, np.ceil(place).astype(np.intp), axis=-1)
    result: Array = (low + (place - np.floor(place)) * (high - low))[..., 0]
    return result


@lru_cache(maxsize=65536)
def student_quantile(chance: float, freedom: float) -> float:
    """The t that a Student variable of `freedom` (2 or more) degrees exceeds with `chance` (below 0.5).

    Source: G. W. Hill, Algorithm 396, Communications of the ACM 13 (1970). Within 0.3 % of the exact value for chances
    down to 1e-9; a test compares it with a table.
    """
    two = 2 * chance
    if freedom <= 2:
        return math.sqrt(2 / (two * (2 - two)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * two) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(chance)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = a * y * y
        y = math.expm1(y) if y > 0.002 else 0.5 * y * y + y
    else:
        y = (
            (
                1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
                + 0.5 / (freedom + 4)
            )
            * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)


MIN_SAMPLE, MAX_SAMPLE, ALL_SAMPLES = 64, 384, 4096
"""Ranks of a group that its medians are taken over, and about how many of all groups together."""
MAX_WEIGHT = 0.10
"""No kernel decides alone, however long it runs."""
MIN_SPREAD = 0.005


BLOCK = 128
"""Ranks at a time: such a block of 500 kernels stays in the processor's cache."""
PILOT_KEYS = 31
CLIP = 3.0
MIN_SHARE = 0.5
"""A rank that has less than this share of its group's weight is not comparable."""


@dataclass(frozen=True)
class Reference:
    """One value per kernel of a group; everything in natural logarithms of seconds but for `weight` and `busy`."""

    level: Array
    """Median of the logarithms of the ranks' medians [keys]; 0 where `weight` is 0."""
    spread: Array
    """Robust standard deviation between ranks [keys]."""
    weight: Array
    """Share of the group's time [keys], each at most MAX_WEIGHT where there are enough keys; sums to 1, or to 0."""
    compute: float
    """Seconds that the median rank spent in these kernels in this window."""
    waited: float
    """The same in collectives."""


def sample_size(groups: int) -> int:
    """How many ranks of each group are sampled where there are so many groups."""
    return max(MIN_SAMPLE, min(MAX_SAMPLE, ALL_SAMPLES // max(groups, 1)))


def sample_of(members: NDArray[np.intp], size: int = MAX_SAMPLE) -> NDArray[np.intp]:
    """At most `size` members. Drawn, because every n-th rank would often be the same slot of each node."""
    if len(members) <= size:
        return members
    drawn = np.random.default_rng(len(members)).choice(len(members), size, replace=False)
    return members[np.sort(drawn)]


def logarithms(medians: Array, counts: Array, min_samples: int) -> Array:
    """Natural logarithms as float32; NaN where there is no time, no positive time, or too few samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.log(medians, dtype=np.float32, casting="same_kind")
    table[~np.isfinite(table) | (counts < min_samples)] = np.nan
    return table


def reference_of(
    window: Window,
    members: NDArray[np.intp],
    kernels: Selector,
    collectives: Selector,
    min_ranks: int,
    min_samples: int,
    size: int = MAX_SAMPLE,
) -> Reference:
    """The reference of the ranks `members`, from at most `size` of them in `window`."""
    rows = sample_of(members, size)
    counts = cells(window.counts, rows, kernels)
    table = logarithms(cells(window.medians, rows, kernels), counts, min_samples)
    times = np.where(np.isnan(table), np.nan, cells(window.totals, rows, kernels))
    level = column_medians(table)
    spread = MAD_TO_SIGMA * column_medians(np.abs(table - level))
    common = np.isfinite(table).sum(axis=0) >= min_ranks
    seconds = np.where(common, np.nan_to_num(column_medians(times)), 0)
    waited = np.nan_to_num(cells(window.totals, rows, collectives)).sum(axis=1)
    return Reference(
        level=np.where(common, level, 0).astype(np.float32),
        spread=np.maximum(np.where(common, spread, 0), MIN_SPREAD).astype(np.float32),
        weight=_weights(seconds).astype(np.float32),
        compute=float(seconds.sum()),
        waited=float(np.median(waited)) if len(rows) else 0.0,
    )


def _weights(seconds: Array) -> Array:
    """Shares of the time, none above MAX_WEIGHT (or above an equal share, where that is more)."""
    used = int((seconds > 0).sum())
    if not used:
        return np.zeros_like(seconds)
    share: Array = seconds / seconds.sum()
    for _ in range(4):  # cutting the largest makes the others larger shares
        share = np.minimum(share, max(MAX_WEIGHT, 1 / used))
        share = share / share.sum()
    return share


def gpu_levels(
    window: Window,
    members: NDArray[np.intp],
    kernels: Selector,
    reference: Reference,
    min_keys: int,
    min_samples: int,
) -> Array:
    """Logarithm of the slowdown of each of the ranks `members` [members]; NaN where there is too little to say."""
    levels = np.full(len(members), np.nan, np.float32)
    if int((reference.weight > 0).sum()) < min_keys:
        return levels
    pilots = np.argsort(-reference.weight, kind="stable")[:PILOT_KEYS]
    pilots = pilots[reference.weight[pilots] > 0]
    for start in range(0, len(members), BLOCK):
        rows = selector(members[start : start + BLOCK])
        block = cells(window.medians, rows, kernels)
        counts = cells(window.counts, rows, kernels)
        levels[start : start + BLOCK] = _block_levels(block, counts, reference, pilots, min_keys, min_samples)
    return levels


def _block_levels(
    medians: Array,
    counts: Array,
    reference: Reference,
    pilots: NDArray[np.intp],
    min_keys: int,
    min_samples: int,
) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        offsets = np.log(medians, dtype=np.float32, casting="same_kind")
    offsets -= reference.level
    weight = reference.weight
    # Two passes that mostly say "all there" are cheaper than always working with masks.
    if counts.min() >= min_samples and np.isfinite(offsets.sum()):
        missing = None
        share: Array = np.ones(len(offsets), np.float32)
        enough: Array = share > 0
    else:
        missing = ~np.isfinite(offsets) | (counts < min_samples)
        offsets[missing] = np.nan
        share = ~missing @ weight
        enough = (~missing & (weight > 0)).sum(axis=1) >= min_keys
    middle = np.nan_to_num(row_medians(offsets[:, pilots]), copy=False)
    offsets -= middle[:, None]
    limit = CLIP * reference.spread
    np.minimum(offsets, limit, out=offsets)  # np.clip with a limit per kernel takes four times as long
    np.maximum(offsets, -limit, out=offsets)
    if missing is not None:
        np.nan_to_num(offsets, copy=False, nan=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels: Array = middle + (offsets @ weight) / share
    return np.where((share >= MIN_SHARE) & enough, levels, np.nan)


def row_medians(table: Array) -> Array:
    """Median of each row without its NaN; NaN for a row of nothing else.

    By sorting, which numpy does with vector instructions, and which leaves NaN at the end: several times as fast as
    `nanmedian`.
    """
    if not table.size:
        return np.full(len(table), np.nan, table.dtype)
    return quantile(np.sort(table, axis=1), np.isfinite(table).sum(axis=1), 0.5)


def column_medians(table: Array) -> Array:
    """Median of each column without its NaN; NaN for a column of nothing else."""
    return row_medians(np.ascontiguousarray(table.T))
