"""How much do healthy ranks differ usually? Spreads of past windows, for groups too small to tell from one window.

Four ranks may agree closely by chance in one window; then a harmless difference looks enormous. The spread that is
believed is at least the median of the last windows'.

Does not cover: the first window after the warm-up, which has no past; `min_slowdown` and the floors hold there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median

KEPT = 8


class Spreads:
    """Spreads of the last windows, by what was measured in which group."""

    def __init__(self) -> None:
        self._past: dict[Hashable, deque[float]] = {}

    def believed(self, name: Hashable, spread: float, floor: float) -> tuple[float, int]:
        """Take this window's spread of `name`; the spread to judge by, and the number of windows it rests on."""
        past = self._past.setdefault(name, deque(maxlen=KEPT))
        past.append(spread)
        return max(spread, floor, median(past)), len(past)

    def forget(self) -> None:
        """Start anew, when the groups have changed."""
        self._past.clear()
