"""What each rank is compared with: the group of ranks that do the same work, and its own past.

Groups are given as one label per rank, or found: ranks that share their kernels and sections. A key that a rank missed
by chance (no sample in the window, a record dropped) does not move it to another group, because the patterns that are
compared are those of majorities, and because a key once seen on a rank counts for good.

The past is a level per rank and name ("gpu", a section), in logarithms, learned after warm-up from the median of a few
windows. It then follows slowly, and more slowly upwards. What all ranks of a group do together (another batch size)
moves their levels together. A restored level that says that a rank was unlike its group is learned anew, if the rank is
like its group now, or nowhere near that level.

Does not cover: ranks that do different amounts of work under the same names; give `groups` for those. A change that is
shared by a group of fewer than `min_ranks` ranks; it looks like that rank's own. A degradation of less than about 0.2 %
per window, which the level follows. What is unusual about a restored level and below `PLAUSIBLE`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

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


# -- the own past ------------------------------------------------------------------------------------------

LEARNING_WINDOWS = 3
DOWNWARD, UPWARD = 0.2, 0.02
"""Share of the distance that a baseline moves per window."""
PLAUSIBLE = math.log(1.15)
"""How far, as a logarithm, levels may differ and still be alike. Chips of one kind are within 1.08."""
FAR = math.log(3)
"""How far a rank may be from its restored level, if that was unlike its group."""


class Baseline:
    """Baselines of all ranks by name; fed once per window."""

    def __init__(self, warmup_windows: int = 1, min_ranks: int = 3) -> None:
        self._warmup = warmup_windows
        self._min_ranks = min_ranks
        self._windows = 0
        self._nodes: tuple[str, ...] = ()
        self._levels: dict[str, Array] = {}
        # [ranks], whose levels were not compared with anything yet.
        self._restored: dict[str, NDArray[np.bool_]] = {}
        self._learning: dict[str, Array] = {}  # [LEARNING_WINDOWS, ranks], NaN where not yet filled

    def update(
        self, levels: Mapping[str, Array], groups: Sequence[NDArray[np.intp]], nodes: Sequence[str]
    ) -> dict[str, Array]:
        """Take one window; log(slowdown against the own past) [ranks] by name, NaN where nothing is learned yet.

        `levels` are logarithms [ranks] by name, `groups` the ranks of each group. A rank on another node than before
        starts anew; all do when the number of ranks changes.
        """
        self._move(tuple(nodes))
        self._windows += 1
        if self._windows <= self._warmup:
            return {name: np.full(len(nodes), np.nan) for name in levels}
        return {name: self._follow(name, np.asarray(level, float), groups) for name, level in levels.items()}

    def _follow(self, name: str, level: Array, groups: Sequence[NDArray[np.intp]]) -> Array:
        nothing = np.full(len(level), np.nan)
        base = self._levels.setdefault(name, nothing.copy())
        excess: Array = level - base
        base += self._middle(excess, groups)  # what each rank's group did together
        if name in self._restored:
            self._doubt(name, level, base, self._middle(level, groups))
        excess = level - base
        rate = np.where(excess < 0, DOWNWARD, UPWARD)
        base += np.nan_to_num(rate * excess)
        self._learn(name, level, base)
        return excess

    def _doubt(self, name: str, level: Array, base: Array, usual: Array) -> None:
        """Forget restored levels that are not plausible: see above. Each is looked at once, when its rank is known."""
        restored = self._restored[name]
        known = restored & np.isfinite(level)
        with np.errstate(invalid="ignore"):
            unusual, changed = np.abs(base - usual) > PLAUSIBLE, np.abs(level - base) > PLAUSIBLE
            like_others = np.abs(level - usual) <= PLAUSIBLE
            base[known & unusual & changed & (like_others | (np.abs(level - base) > FAR))] = np.nan
        restored &= ~known
        if not restored.any():
            del self._restored[name]

    def _middle(self, values: Array, groups: Sequence[NDArray[np.intp]]) -> Array:
        """The median of each rank's group [ranks], 0 where too few are known."""
        middle = np.zeros(len(values))
        for members in groups:
            known = values[members]
            known = known[np.isfinite(known)]
            if len(known) >= self._min_ranks:
                middle[members] = np.median(known)
        return middle

    def _learn(self, name: str, level: Array, base: Array) -> None:
        """Collect the first windows of the ranks that have no baseline; a rank that has enough gets one."""
        new = np.isnan(base)
        if not new.any():
            self._learning.pop(name, None)
            return
        windows = self._learning.setdefault(name, np.full((LEARNING_WINDOWS, len(level)), np.nan))
        filled = np.isfinite(windows).sum(axis=0)
        ranks = np.flatnonzero(new & np.isfinite(level))
        windows[filled[ranks], ranks] = level[ranks]
        ready = ranks[filled[ranks] + 1 == LEARNING_WINDOWS]
        base[ready] = np.median(windows[:, ready], axis=0)
        windows[:, ready] = np.nan

    def _move(self, nodes: tuple[str, ...]) -> None:
        """Forget what was learned about ranks that are elsewhere now."""
        if nodes == self._nodes:
            return
        if len(nodes) != len(self._nodes):
            self._levels, self._learning, self._restored = {}, {}, {}
        else:
            moved = np.array([new != old for new, old in zip(nodes, self._nodes, strict=True)])
            for table in (*self._levels.values(), *self._learning.values()):
                table[..., moved] = np.nan
            for restored in self._restored.values():
                restored[moved] = False
        self._nodes = nodes

    @property
    def levels(self) -> Mapping[str, Array]:
        """What was learned [ranks] by name, NaN for a rank without a baseline; for `restore` after the next start."""
        return self._levels

    def restore(self, nodes: Sequence[str], levels: Mapping[str, Array]) -> None:
        """Take over what was learned when the ranks were on these nodes.

        The warm-up is skipped again: a restarted job warms up again.
        """
        self._nodes, self._learning, self._windows = tuple(nodes), {}, 0
        self._levels = {name: np.where(np.isfinite(base), base, np.nan) for name, base in levels.items()}
        self._restored = {name: np.isfinite(base) for name, base in levels.items()}
