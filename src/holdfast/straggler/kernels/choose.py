"""Which source of kernel times a process uses: `cupti` where it can be opened, else `cuda_events`, else `none`.

The choice is made at the first measured section after the training initialised CUDA, not before: opening CUPTI
initialises CUDA, and that reads `CUDA_VISIBLE_DEVICES` for good and breaks processes that are forked later, while
`Detector.initialize` usually runs before the training chose its GPU.

What always holds: without a driver, nothing of CUDA is loaded or called; torch is never loaded.
Does not cover: GPUs of other makers than NVIDIA, but with `HOLDFAST_KERNEL_SOURCE=cuda_events`, which needs torch only.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping

from holdfast.fault_tolerance.processes import proc

from .cuda_events import CudaEventSource, TorchCuda
from .cupti import open_cupti
from .source import KernelSource, KernelWindow

log = logging.getLogger("holdfast.straggler")

VARIABLE = "HOLDFAST_KERNEL_SOURCE"
"""The source of kernel times: `cupti`, `cuda_events` or `none`; without it, the best that is there."""
ALLOWED = ("cupti", "cuda_events", "none")
DRIVER_LIBRARY = "libcuda.so.1"
"""On WSL and Jetson it is the sign that there is a driver."""
NO_DRIVER = "this machine has no NVIDIA driver"
NOT_YET = "CUDA is not initialised in this process yet"


def choose(
    environ: Mapping[str, str] = os.environ,
    driver: Callable[[], bool] | None = None,
    usable: Callable[[], bool] | None = None,
    cupti: Callable[[int | None, bool], KernelSource | str] = open_cupti,
    max_sections: int | None = None,
) -> KernelSource:
    """The source for this process, which may choose between several later; see the module's docstring.

    Args:
        environ: the environment.
        driver: whether there is a driver; None asks this machine.
        usable: whether CUDA is initialised and no graph is being captured; None asks torch.
        cupti: opens CUPTI, or gives the reason why it cannot be used.
        max_sections: runs of outermost sections that are profiled between two reports; None is all.

    Raises:
        ValueError: `HOLDFAST_KERNEL_SOURCE` is set to something else than cupti, cuda_events or none.
    """
    asked = environ.get(VARIABLE, "")
    if asked and asked not in ALLOWED:
        raise ValueError(f"{VARIABLE} is {asked!r}: allowed are {', '.join(ALLOWED)}, or nothing at all")
    if asked == "none":
        return KernelSource(f"{VARIABLE}=none")
    if asked == "cuda_events":
        return CudaEventSource(f"{VARIABLE}=cuda_events", max_sections)
    if not (driver or _driver)():
        return KernelSource(NO_DRIVER)

    def decide() -> KernelSource:
        found = cupti(max_sections, bool(asked))
        if not isinstance(found, str):
            return found
        if asked:
            return KernelSource(f"{VARIABLE}=cupti, but {found}")
        log.info("GPU time is measured by CUDA events, a section at a time: cupti is not used: %s", found)
        return CudaEventSource(f"cupti is not used: {found}", max_sections)

    return LaterSource(decide, usable or TorchCuda().usable)


class LaterSource(KernelSource):
    """The source that `decide` gives at the first `start` at which CUDA is `usable`; until then, none."""

    def __init__(self, decide: Callable[[], KernelSource], usable: Callable[[], bool]) -> None:
        self._decide: Callable[[], KernelSource] | None = decide
        self._usable = usable
        self._use(KernelSource(NOT_YET))

    def start(self, section: str) -> None:
        if self._decide is not None:
            try:
                if self._usable():
                    decide, self._decide = self._decide, None
                    self._use(decide())
            except Exception as error:  # of the native core, or of a CUDA that is broken
                self._decide = None
                self._use(KernelSource(f"choosing a source failed: {type(error).__name__}: {error}"))
        self._source.start(section)

    def stop(self, late: bool = False) -> None:
        self._source.stop(late)

    def pause(self) -> None:
        self._source.pause()

    def resume(self) -> None:
        self._source.resume()

    def take(self) -> KernelWindow:
        return self._source.take()

    def close(self) -> None:
        self._source.close()

    def _use(self, source: KernelSource) -> None:
        self._source, self.name, self.reason = source, source.name, source.reason


def _driver() -> bool:
    """Whether an NVIDIA driver is there. Opens its library at most, and calls nothing of it."""
    if proc.nvidia_driver():
        return True
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True
