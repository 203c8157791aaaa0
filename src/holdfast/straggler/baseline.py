"""How slow is each rank against its own past?

A baseline is a level per rank and name ("gpu", a section), in logarithms, learned after warm-up from the median of a
few windows. It then follows slowly, and more slowly upwards. What all ranks of a group do together (another batch size)
moves their baselines together. A restored level that says that a rank was unlike its group is learned anew, if the rank
is like its group now, or nowhere near that level.

Does not cover: a change that is shared by a group of fewer than `min_ranks` ranks; it looks like that rank's own. A
degradation of less than about 0.2 % per window, which the baseline follows. What is unusual about a restored level and
below `PLAUSIBLE`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .window import Array

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
