"""How slow is each rank against its own past?

A baseline is a level per rank and name ("gpu", a section), in logarithms, learned after warm-up from the median of a
few windows. It then follows slowly, and more slowly upwards, so that it does not get used to a rank that degrades. What
all ranks of a group do together (another batch size, another sequence length) moves their baselines together and makes
nobody slow.

Does not cover: a change that is shared by a group of fewer than `min_ranks` ranks; it looks like that rank's own. A
degradation of less than about 0.2 % per window, which the baseline follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .window import Array

LEARNING_WINDOWS = 3
DOWNWARD, UPWARD = 0.2, 0.02
"""Share of the distance that a baseline moves per window."""
VERSION = 1


class Baseline:
    """Baselines of all ranks by name; fed once per window, saved to and restored from a dict that JSON can hold."""

    def __init__(self, warmup_windows: int = 1, min_ranks: int = 3) -> None:
        self._warmup = warmup_windows
        self._min_ranks = min_ranks
        self._windows = 0
        self._nodes: tuple[str, ...] = ()
        self._levels: dict[str, Array] = {}
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
        base += self._shift(excess, groups)
        excess = level - base
        rate = np.where(excess < 0, DOWNWARD, UPWARD)
        base += np.nan_to_num(rate * excess)
        self._learn(name, level, base)
        return excess

    def _shift(self, excess: Array, groups: Sequence[NDArray[np.intp]]) -> Array:
        """What each rank's group did together."""
        shift = np.zeros(len(excess))
        for members in groups:
            known = excess[members]
            known = known[np.isfinite(known)]
            if len(known) >= self._min_ranks:
                shift[members] = np.median(known)
        return shift

    def _learn(self, name: str, level: Array, base: Array) -> None:
        """Collect the first windows of the ranks that have no baseline; whoever has enough gets one."""
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
            self._levels, self._learning = {}, {}
        else:
            moved = np.array([new != old for new, old in zip(nodes, self._nodes, strict=True)])
            for table in (*self._levels.values(), *self._learning.values()):
                table[..., moved] = np.nan
        self._nodes = nodes

    def save(self) -> dict[str, Any]:
        """What was learned, as numbers, lists and strings; None for a rank without a baseline."""
        return self.saving()()

    def saving(self) -> Callable[[], dict[str, Any]]:
        """`save`, as of now, for another thread to do: copying takes microseconds, the rest 32 ms at 16,384 ranks."""
        nodes, levels = list(self._nodes), {name: base.copy() for name, base in self._levels.items()}

        def saved() -> dict[str, Any]:
            plain = {
                name: [None if value != value else round(value, 6) for value in base.tolist()]
                for name, base in levels.items()
            }
            return {"version": VERSION, "nodes": nodes, "levels": plain}

        return saved

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `save` gave. ValueError, and nothing changed, if it is not that.

        The warm-up is skipped again: a restarted job warms up again.
        """
        try:
            nodes = tuple(str(node) for node in saved["nodes"])
            levels = {
                str(name): np.array([np.nan if value is None else float(value) for value in base])
                for name, base in saved["levels"].items()
            }
            fits = saved["version"] == VERSION and all(len(base) == len(nodes) for base in levels.values())
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"straggler baseline: not a saved baseline ({error!r})") from error
        if not fits:
            raise ValueError(f"straggler baseline: not a saved baseline of version {VERSION}, or cut off")
        self._nodes, self._levels, self._learning, self._windows = nodes, levels, {}, 0
