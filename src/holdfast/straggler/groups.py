"""Which ranks do the same work? Only those are compared.

Given: one label per rank. Found: ranks that share their kernels and sections. A key that a rank missed by chance (no
sample in the window, a record dropped) does not move it to another group, because the patterns that are compared are
those of majorities, and because a key once seen on a rank counts for good.

Does not cover: ranks that do different amounts of work under the same names. Give `groups` for those.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from .window import Array, Window

Codes = NDArray[np.intp]

NEARLY_ALL = 0.95
MAX_PATTERNS = 64
ROUNDS = 3


def from_labels(labels: Sequence[Hashable]) -> Codes:
    """A number for each rank [ranks], equal for equal labels, in order of their first rank."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.intp)


def members_of(codes: Codes) -> list[NDArray[np.intp]]:
    """The ranks of each group, ascending."""
    if not len(codes) or bool((codes == codes[0]).all()):  # the usual case, and sorting takes a millisecond
        return [np.arange(len(codes))]
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def from_presence(present: NDArray[np.bool_], min_ranks: int) -> Codes:
    """Groups [ranks] from which keys each rank has: `present` [ranks, keys].

    A pattern that fewer than `min_ranks` ranks show is no group; its ranks join the most similar one.
    """
    if not present.size or bool((present == present[0]).all()):
        return np.zeros(len(present), dtype=np.intp)
    table = present.astype(np.float32)
    patterns = _first_patterns(table, _tolerance(table))
    for _ in range(ROUNDS):
        patterns = _majorities(table, _nearest(table, patterns), len(patterns), min_ranks)
        if not len(patterns):
            return np.zeros(len(present), dtype=np.intp)
    return from_labels(_nearest(table, patterns).tolist())


def _tolerance(table: Array) -> float:
    """How many keys two ranks of one group may differ in, judged by keys that nearly all or nearly no ranks have."""
    share = table.mean(axis=0)
    by_chance = np.where(share >= NEARLY_ALL, 1 - share, np.where(share <= 1 - NEARLY_ALL, share, 0))
    pair = 2 * float(by_chance.sum())  # each of the two can miss it
    return float(max(1.0, 0.01 * table.shape[1], pair + 3 * math.sqrt(pair)))


def _distances(table: Array, pattern: Array) -> Array:
    """Number of keys [ranks] in which each rank differs from a pattern of zeros and ones."""
    result: Array = table @ (1 - 2 * pattern) + pattern.sum()
    return result


def _first_patterns(table: Array, tolerance: float) -> Array:
    """Ranks that differ from each other by more than the tolerance, as patterns [patterns, keys]."""
    patterns: list[Array] = []
    left = np.ones(len(table), dtype=bool)
    while left.any() and len(patterns) < MAX_PATTERNS:
        pattern = table[int(left.argmax())]
        patterns.append(pattern)
        left &= _distances(table, pattern) > tolerance
    return np.stack(patterns)


def _nearest(table: Array, patterns: Array) -> Array:
    distances = np.stack([_distances(table, pattern) for pattern in patterns])
    nearest: Array = distances.argmin(axis=0)
    return nearest


def _majorities(table: Array, nearest: Array, count: int, min_ranks: int) -> Array:
    """What most members of each large enough group have; groups whose majorities agree become one."""
    kept: list[Array] = []
    for number in range(count):
        members = nearest == number
        if members.sum() < min_ranks:
            continue
        pattern = (table[members].mean(axis=0) > 0.5).astype(np.float32)
        if not any(np.array_equal(pattern, other) for other in kept):
            kept.append(pattern)
    return np.stack(kept) if kept else np.empty((0, table.shape[1]), np.float32)


class FoundGroups:
    """Groups found from the windows so far; computed anew only when a rank shows a key that it never had."""

    def __init__(self, min_ranks: int) -> None:
        self._min_ranks = min_ranks
        self._keys: tuple[str, ...] = ()
        self._seen = np.zeros((0, 0), dtype=bool)
        self._codes: Codes = np.zeros(0, dtype=np.intp)

    def update(self, window: Window) -> Codes:
        """The groups [ranks] after this window."""
        keys = tuple(window.keys)
        present = np.isfinite(window.medians)
        if keys != self._keys or window.ranks != len(self._seen):
            self._seen, self._keys = self._carried(keys, present.shape), keys
            self._codes = np.zeros(0, dtype=np.intp)
        if not len(self._codes) or bool((present > self._seen).any()):
            self._seen |= present
            self._codes = from_presence(self._seen, self._min_ranks)
        return self._codes

    def _carried(self, keys: tuple[str, ...], shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """What was seen so far in the order of `keys`; keys that are gone are forgotten."""
        seen = np.zeros(shape, dtype=bool)
        if shape[0] == len(self._seen):
            before = {key: column for column, key in enumerate(self._keys)}
            for new, key in enumerate(keys):
                if key in before:
                    seen[:, new] = self._seen[:, before[key]]
        return seen
