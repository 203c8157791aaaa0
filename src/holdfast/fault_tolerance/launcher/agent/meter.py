"""How fast the local ranks train, seen from their positions. Pure.

What always holds: a speed is that of training batches; those of validations are others, with a pace of their own.
Does not cover: ranks whose pace changes after the measurement; a refused proposal is made anew, farther ahead.
"""

from __future__ import annotations

from ...stop.positions import batches_of
from ...stop.rules import TAKES_PART, RankView

WINDOW = 0.02  # seconds in which the speed of the ranks is measured, or as long as a word takes
WINDOW_AT_MOST = 1.0


def window(delay: float) -> float:
    """How long to measure where a word takes `delay` seconds: then one batch more or less makes no difference."""
    return max(WINDOW, min(delay, WINDOW_AT_MOST))


class Meter:
    """Measures each rank from the first look at it that finds it taking part, for `window` seconds at least."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._first: dict[int, tuple[float, int]] = {}

    def speed(self, views: list[RankView], now: float) -> float:
        """Training batches per second of the fastest."""
        speeds = [0.0]
        for view in views:
            if view.state != TAKES_PART:
                continue
            batches = batches_of(view.position)
            since, before = self._first.setdefault(view.rank, (now, batches))
            if now - since >= self._window:
                speeds.append((batches - before) / (now - since))
        return max(speeds)

    def ready(self, now: float) -> bool:
        """Whether a first look is long enough ago."""
        return any(now - since >= self._window for since, _ in self._first.values())
