"""The interface of a source of kernel times, and the source for machines without one.

A source measures between `start` and `stop`. Sections may be nested and may run in several threads, so a `Capture`
stands between them and the source: it starts with the first open section and stops with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..statistic import Summary


@dataclass(frozen=True)
class KernelWindow:
    """What a source measured since it was last asked. Times are in microseconds.

    Does not cover: kernels that ran while the source was not measuring; reports say which share that was only where
    the source can know it.
    """

    compute: Mapping[str, Summary] = field(default_factory=dict)
    """Kernels that compute, by name and launch shape."""
    collectives: Mapping[str, Summary] = field(default_factory=dict)
    """Kernels that wait for other ranks as well: they are never scored, but tell who arrives last."""
    records: int = 0
    """Times that were measured."""
    dropped: int = 0
    """Times that are known to be lost."""
    note: str = ""
    """Why it saw less than it could, one clause; empty if it saw all that it should."""


class KernelSource(Protocol):
    """Measures the GPU kernels that this process launches between `start` and `stop`. None of its calls raises."""

    @property
    def name(self) -> str:
        """What the report calls it: `cupti`, `cuda_events` or `none`."""

    @property
    def reason(self) -> str:
        """Why no better source is used, one clause; empty for the best."""

    def start(self, section: str) -> None:
        """Measure the kernels launched from now on; `section` is the outermost open one. Never twice in a row."""

    def stop(self) -> None:
        """Measure no more. Called from any thread."""

    def take(self) -> KernelWindow:
        """What was measured since the last call. Never waits for the GPU."""

    def close(self) -> None:
        """Give back what it holds. Called once, at the end; nothing is called after it."""


class NoKernels:
    """The source named `none`: there is no GPU, or nothing that could time its kernels."""

    name = "none"

    def __init__(self, reason: str = "no GPU") -> None:
        self.reason = reason

    def start(self, section: str) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def take(self) -> KernelWindow:
        """No kernels."""
        return KernelWindow()

    def close(self) -> None:
        """Nothing to give back."""


class Capture:
    """Starts a source with the first of several overlapping sections and stops it with the last."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open = 0

    def enter(self, section: str) -> None:
        """A section was opened."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._source.start(section)

    def leave(self) -> None:
        """A section was closed."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._source.stop()
