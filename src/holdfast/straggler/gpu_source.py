"""Where the times of GPU kernels come from: the interface of a source, and the source for machines without one.

A source measures between `start` and `stop`. Sections may be nested and may run in several threads, so a `Capture`
stands between them and the source: it starts with the first open section and stops with the last.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from .statistic import Summary


class KernelSource(Protocol):
    """Measures the GPU kernels that this process launches between `start` and `stop`. None of its calls raises."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def start(self) -> None:
        """Measure the kernels launched from now on. Never called twice in a row."""

    def stop(self) -> None:
        """Measure no more. Called from any thread."""

    def take(self) -> Mapping[str, Summary]:
        """Each kernel's summary since the last call, in microseconds; collective kernels are left out."""


class NoKernels:
    """The source named `none`: there is no GPU, or nothing that could time its kernels."""

    name = "none"

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def take(self) -> Mapping[str, Summary]:
        """No kernels."""
        return {}


class Capture:
    """Starts a source with the first of several overlapping sections and stops it with the last."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open = 0

    def enter(self) -> None:
        """A section was opened."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._source.start()

    def leave(self) -> None:
        """A section was closed."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._source.stop()
