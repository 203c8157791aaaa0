"""Everything that measures on this rank, between two reports: sections, kernels, the host's losses, the GPU's facts.

Does not cover: other ranks; that is `exchange`.
"""

from __future__ import annotations

from .gpu_facts import UNKNOWN
from .host.losses import HostLosses
from .kernels.source import Capture, KernelSource, NoKernels
from .nvml import GpuFacts
from .sections import Sections
from .snapshot import Snapshot
from .wrapping import Wrapped


class Instruments:
    """Measure from creation to `close`, for the thread that created them."""

    def __init__(self, interval: int, source: KernelSource) -> None:
        self.source = source
        self._capture = Capture(source)
        nothing = isinstance(source, NoKernels)
        self.sections = Sections(interval, None if nothing else self._capture)
        self.wrapped = Wrapped(self.sections)
        self._host, self._interval = HostLosses(), interval
        self._gpu = GpuFacts()

    def take(self, steps: float | None) -> Snapshot:
        """What was measured since the last call; `steps` is the estimate of steps between reports."""
        sections, waiting = self.sections.take(), self.sections.waiting
        kernels = self._capture.take().apart(waiting)
        facts = self._gpu.take() if kernels.records else None
        return Snapshot(
            sections=sections,
            kernels=kernels,
            waiting=waiting,
            losses=self._host.take(),
            elapsed=self._host.elapsed / self._interval,
            facts=facts or UNKNOWN,
            steps=steps,
        )

    def close(self) -> None:
        """End: callables are what they were, nothing is measured any more."""
        self.wrapped.restore()
        self.sections.close()
        self._capture.close()
        self._host.close()
        self._gpu.close()
