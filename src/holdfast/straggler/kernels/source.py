"""The interface of a source of kernel times, and the source for machines without one.

A source measures between `start` and `stop`. Sections may be nested and may run in several threads, so a `Capture`
stands between them and the source; see `capture`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..statistic import Summary

REPORTS_OPEN = 3
"""Reports in a row that find a section open, before it is taken for one whose end never comes."""


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
    by_section: bool = False
    """Whether the names are those of sections, whose whole GPU time each is, and not of kernels."""

    def apart(self, waiting: Collection[str]) -> KernelWindow:
        """The same, where sections that wait for other ranks are no compute: a rank that waits is not slow."""
        if not self.by_section or not any(name in waiting for name in self.compute):
            return self
        compute = {name: found for name, found in self.compute.items() if name not in waiting}
        waits = {name: found for name, found in self.compute.items() if name in waiting}
        return replace(self, compute=compute, collectives={**self.collectives, **waits})


class KernelSource(Protocol):
    """Measures the GPU kernels that this process launches between `start` and `stop`. None of its calls raises.

    They may come from any thread, and never at once: `Capture` sees to that, so a source needs no lock.
    """

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
