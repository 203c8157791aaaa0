"""The source named `cuda_events`: the GPU time of each outermost section, by a pair of CUDA events around it.

The time runs from where the stream gets to the section's begin to where it gets to its end. So it holds everything
that the stream did or waited for meanwhile: kernels, copies, waiting for other streams, for the host to launch more,
and for other ranks in a collective. All of it counts as compute of the section, except that a `collective_section` is
never scored: any other section that contains a collective tells who waits, not who is slow.

What always holds: nothing raises, and nothing waits for the GPU. No CUDA call is made before the training itself
initialised CUDA in this process: an earlier one would read `CUDA_VISIBLE_DEVICES` too early, and break every process
that is forked later. At most `MOST_PAIRS` pairs of events wait for the GPU. An error of CUDA ends the measuring.
Does not cover: CUDA that is used without torch; work of a section on other streams than the current one at its begin,
unless that stream waits for it; sections inside the capture of a CUDA graph (around its replay they are measured), and
a capture in another thread, which an event that is asked meanwhile ends; sections that are open for more than
`REPORTS_OPEN` reports; single kernels.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from ..statistic import summarise
from .source import REPORTS_OPEN, KernelSource, KernelWindow

MOST_PAIRS = 1024
"""Runs whose end the GPU has not reached. Further runs are dropped, and counted."""
KEPT = 8192
"""Times kept of each section in a window; older ones are counted, and forgotten."""
_US = 1e3  # milliseconds


class TorchCuda:
    """The little of torch.cuda that measuring needs, of a torch that the training has loaded; never loaded here."""

    def usable(self) -> bool:
        """Whether this process has initialised CUDA, and its current stream is not being captured into a graph. May
        raise what torch raises."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)  # None too while torch is just being loaded
        return cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing()

    def stream(self) -> Any:
        """The current stream of this thread. Only where `usable`."""
        return sys.modules["torch"].cuda.current_stream()

    def event(self) -> Any:
        """A new event, of no device until it is recorded. Only where `usable`."""
        return sys.modules["torch"].cuda.Event(enable_timing=True)


class _Pair:
    """Two events of one device, around one run of a section."""

    __slots__ = ("begin", "device", "end", "reports", "section", "stream")

    def __init__(self, cuda: Any, device: int) -> None:
        self.begin, self.end, self.device = cuda.event(), cuda.event(), device
        self.section = ""
        self.reports = 0  # while it was open
        self.stream: Any = None


class CudaEventSource(KernelSource):
    """A `KernelSource`; its window has sections in place of kernels."""

    name = "cuda_events"

    def __init__(self, reason: str = "", max_sections: int | None = None, cuda: Any = None) -> None:
        """`reason`: why no better source is used. `max_sections`: runs that are timed in a window; None is all."""
        super().__init__(reason)
        self._cuda = cuda or TorchCuda()
        self._most = max_sections
        # By device: an event stays on the one that it was first used on.
        self._free: dict[int, list[_Pair]] = {}
        self._ended: deque[_Pair] = deque()  # the oldest first
        self._open: _Pair | None = None
        self._times: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._begun = self._dropped = 0
        self._failed = ""

    def start(self, section: str) -> None:
        if self._failed or (self._most is not None and self._begun >= self._most):
            return
        try:
            if self._cuda.usable():
                self._begun += 1
                self._begin(section)
        except Exception as error:
            self._fail(error)

    def stop(self, late: bool = False) -> None:
        """The end is recorded on the stream of the begin, whichever thread comes here."""
        pair, self._open = self._open, None
        if pair is None:
            return
        try:
            # A capture began in the section: an event in a graph cannot be asked. And a pair that stays open forever,
            # or ended earlier, is no time.
            if late or not self._cuda.usable() or pair.reports > REPORTS_OPEN:
                self._dropped += 1
                self._free.setdefault(pair.device, []).append(pair)
                return
            pair.end.record(pair.stream)
            self._ended.append(pair)
        except Exception as error:
            self._fail(error)

    def take(self) -> KernelWindow:
        """Runs that the GPU has not finished yet are in the next window."""
        if self._open is not None:
            self._open.reports += 1
        try:
            if self._cuda.usable():
                self._read()
        except Exception as error:
            self._fail(error)
        times, self._times = self._times, {}
        counts, self._counts = self._counts, {}
        dropped, self._dropped = self._dropped, 0
        self._begun = 0
        compute = {section: summarise(found, counts[section]) for section, found in times.items()}
        return KernelWindow(compute, {}, sum(counts.values()), dropped, self._failed, by_section=True)

    def close(self) -> None:
        self._open = None
        self._ended.clear()
        self._free, self._times, self._counts = {}, {}, {}

    def _begin(self, section: str) -> None:
        """Record the begin of a run; one more that was dropped, if the GPU is too far behind."""
        stream = self._cuda.stream()
        free = self._free.setdefault(stream.device_index, [])
        if not free:
            self._read()
        if not free and len(self._ended) >= MOST_PAIRS:
            self._dropped += 1
            return
        pair = free.pop() if free else _Pair(self._cuda, stream.device_index)
        pair.section, pair.stream, pair.reports = section, stream, 0
        pair.begin.record(stream)
        self._open = pair

    def _read(self) -> None:
        """Note the microseconds of the runs that the GPU has finished, up to the first that it has not."""
        while self._ended and self._ended[0].end.query():
            pair = self._ended.popleft()
            taken = pair.begin.elapsed_time(pair.end) * _US
            self._times.setdefault(pair.section, deque(maxlen=KEPT)).append(taken)
            self._counts[pair.section] = self._counts.get(pair.section, 0) + 1
            pair.stream = None
            self._free.setdefault(pair.device, []).append(pair)

    def _fail(self, error: Exception) -> None:
        """Measure no more: after an error of CUDA, each further call would only repeat it."""
        if not self._failed:
            self._failed = f"timing by CUDA events ended after an error: {type(error).__name__}: {error}"
        self.close()
