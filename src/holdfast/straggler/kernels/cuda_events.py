"""The source named `cuda_events`: the GPU time of each outermost section, by a pair of CUDA events around it.

The time runs from where the stream gets to the section's begin to where it gets to its end. So it holds everything
that the stream did or waited for meanwhile: kernels, copies, waiting for other streams, for the host to launch more,
and for other ranks in a collective. All of it counts as compute of the section, except that a `collective_section` is
never scored: any other section that contains a collective tells who waits, not who is slow.

What always holds: nothing raises, and nothing waits for the GPU. Events are asked only when a window is taken, never
while training runs. At most `MOST_PAIRS` pairs of events are in use, and at most `PAIRS_OF_A_SECTION` for each section
and window. An error of CUDA ends the measuring for good.
Does not cover: work of a section on other streams than the current one at its begin, unless that stream waits for
it; sections inside the capture of a CUDA graph (around its replay they are measured); sections that are open for more
than `REPORTS_OPEN` reports; single kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..statistic import summarise
from .source import REPORTS_OPEN, KernelWindow
from .torch_cuda import Cuda, Event, Stream, TorchCuda

PAIRS_OF_A_SECTION = 128
"""Timed entries of a section in one window. If there were more entries, every n-th is timed in the next window."""
MOST_PAIRS = 1024
_US = 1e3  # milliseconds


class _Pair:
    """Two events of one device, around one entry of a section."""

    __slots__ = ("begin", "device", "end", "reports", "section", "stream")

    def __init__(self, begin: Event, end: Event, device: int) -> None:
        self.begin, self.end, self.device = begin, end, device
        self.section = ""
        self.reports = 0  # while it was open
        self.stream: Stream | None = None


class _Count:
    """The entries of one section: in this window, and of how many one is timed."""

    __slots__ = ("entries", "stride", "timed")

    def __init__(self, stride: int = 1) -> None:
        self.entries = self.timed = 0
        self.stride = stride


class CudaEventSource:
    """A `KernelSource`; its window has sections in place of kernels."""

    name = "cuda_events"

    def __init__(self, reason: str = "", cuda: Cuda | None = None) -> None:
        """`reason` says why no better source is used."""
        self.reason = reason
        self._cuda = cuda or TorchCuda()
        self._counts: dict[str, _Count] = {}
        # By device: an event stays on the one that it was first used on.
        self._free: dict[int, list[_Pair]] = {}
        self._ended: list[_Pair] = []
        self._open: _Pair | None = None
        self._pairs = self._dropped = 0
        self._failed = ""

    def start(self, section: str) -> None:
        """See `KernelSource`."""
        if self._failed:
            return
        try:
            if self._cuda.usable() and self._is_timed(section):
                self._open = self._begun(section)
        except Exception as error:
            self._fail(error)

    def stop(self) -> None:
        """See `KernelSource`. The end is recorded on the stream of the begin, whichever thread comes here."""
        pair, self._open = self._open, None
        if pair is None:
            return
        try:
            # A capture began in the section: an event in a graph cannot be asked. And what is open for ever is no time.
            if not self._cuda.usable() or pair.reports > REPORTS_OPEN:
                self._dropped += 1
                self._free.setdefault(pair.device, []).append(pair)
                return
            pair.end.record(pair.stream)
            self._ended.append(pair)
        except Exception as error:
            self._fail(error)

    def take(self) -> KernelWindow:
        """See `KernelSource`. Entries that the GPU has not finished yet are in the next window."""
        if self._open is not None:
            self._open.reports += 1
        ended, self._ended = self._ended, []
        dropped, self._dropped = self._dropped, 0
        stride = max((count.stride for count in self._counts.values() if count.entries), default=1)
        self._counts = {
            section: _Count(max(1, -(-count.entries // PAIRS_OF_A_SECTION)))
            for section, count in self._counts.items()
        }
        times: dict[str, list[float]] = {}
        try:
            waiting = self._read(ended, times) if self._cuda.usable() else ended
            self._ended = waiting + self._ended
        except Exception as error:
            self._fail(error)
        compute = {section: summarise(found) for section, found in times.items()}
        note = self._failed or (
            f"1 in {stride} entries of the busiest section is timed" if stride > 1 else ""
        )
        records = sum(map(len, times.values()))
        return KernelWindow(compute, records=records, dropped=dropped, note=note, by_section=True)

    def close(self) -> None:
        """See `KernelSource`."""
        self._open = None
        self._ended, self._free = [], {}

    def _is_timed(self, section: str) -> bool:
        count = self._counts.get(section)
        if count is None:
            count = self._counts[section] = _Count()
        turn = count.entries % count.stride == 0
        count.entries += 1
        if not turn:
            return False
        if count.timed >= PAIRS_OF_A_SECTION:
            self._dropped += 1
            return False
        count.timed += 1
        return True

    def _begun(self, section: str) -> _Pair | None:
        """A pair whose begin is recorded; None, and one more that was dropped, if all are in use."""
        stream = self._cuda.stream()
        free = self._free.setdefault(stream.device_index, [])
        pair = free.pop() if free else None
        if pair is None and self._pairs >= MOST_PAIRS:
            self._dropped += 1
            return None
        if pair is None:
            pair = _Pair(self._cuda.event(), self._cuda.event(), stream.device_index)
            self._pairs += 1
        pair.section, pair.stream, pair.reports = section, stream, 0
        pair.begin.record(stream)
        return pair

    def _read(self, ended: Iterable[_Pair], times: dict[str, list[float]]) -> list[_Pair]:
        """Put the microseconds of those that have ended into `times`; the others."""
        waiting = []
        for pair in ended:
            if not pair.end.query():
                waiting.append(pair)
                continue
            times.setdefault(pair.section, []).append(pair.begin.elapsed_time(pair.end) * _US)
            pair.stream = None
            self._free.setdefault(pair.device, []).append(pair)
        return waiting

    def _fail(self, error: Exception) -> None:
        """Measure no more: after an error of CUDA, each further call would only repeat it."""
        if not self._failed:
            self._failed = f"timing by CUDA events ended after an error: {type(error).__name__}: {error}"
        self.close()
