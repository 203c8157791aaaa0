"""How long Python's garbage collector stopped this process.

What always holds: a pause costs less than a microsecond more; callbacks of others are not touched; a fork's child
starts from nothing.
Does not cover: memory that is freed by reference counts, which is no pause; interpreters other than CPython, whose
pauses are not told.
"""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import Any

_SECONDS = 1e-9


class Pauses:
    """Counts from its creation to `close`."""

    def __init__(self) -> None:
        self._started = 0
        self._total = 0
        self._taken = 0
        gc.callbacks.append(self._told)

    def take(self) -> float:
        """Seconds of the pauses since the last call; one that is still going on belongs to the next."""
        total = self._total
        paused, self._taken = total - self._taken, total
        return paused * _SECONDS

    def close(self) -> None:
        """Count no more. May be called twice."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        # One collection runs at a time, whatever the thread, and so these two numbers need no lock. With another
        # thread's entry in between (a callback may let threads change), a pause is lost, and never counted twice.
        if phase == "start":
            self._started = perf_counter_ns()
        elif self._started:
            self._total += perf_counter_ns() - self._started
            self._started = 0
