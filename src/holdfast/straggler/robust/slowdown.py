"""How slow is each rank's GPU? One level per rank from all kernels that it shares with its group.

A level is the mean over kernels of log(own median / reference), weighted by time, where no kernel counts for more than
a few of its usual spreads off the rank's own middle (one step of Huber's estimator, from a median). So one odd kernel
does not make a slow rank, a kernel that is missing counts for nothing, and a GPU that is slow in everything keeps its
full slowdown.

Does not cover: a GPU that is slow in only a few kernels. Its level stays near 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .reference import Reference
from .significance import row_medians
from .window import Array, Selector, Window, cells, selector

BLOCK = 128
"""Ranks at a time: such a block of 500 kernels stays in the processor's cache."""
PILOT_KEYS = 31
CLIP = 3.0
MIN_SHARE = 0.5
"""A rank that has less than this share of its group's weight is not comparable."""


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
