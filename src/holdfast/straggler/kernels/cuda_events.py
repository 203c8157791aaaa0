"""The source named `cuda_events`: the GPU time of each outermost section, by a pair of CUDA events around it.

The time holds everything that the stream did or waited for meanwhile, other ranks in a collective included. A section
within it that is not to be profiled cuts the run into parts, each with a pair of its own, whose times are added.

What always holds: nothing raises, and nothing waits for the GPU. No CUDA call is made before the training itself
initialised CUDA in this process: an earlier one would read `CUDA_VISIBLE_DEVICES` too early, and break every process
that is forked later. At most `MOST_PAIRS` pairs of events wait for the GPU. An error of CUDA ends the measuring.
Does not cover: CUDA that is used without torch; work of a section on other streams than the current one at its begin,
unless that stream waits for it; sections inside the capture of a CUDA graph (around its replay they are measured), and
a capture in another thread, which an event that is asked meanwhile ends; single kernels.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from ..scores import summarise
from .source import KernelSource, KernelWindow

MOST_PAIRS = 1024
"""Whose end the GPU has not reached. Further runs are dropped, and counted."""
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
    """Two events of one device, around one run of a section, or around one part of it."""

    __slots__ = ("begin", "device", "earlier", "end", "section", "stream")

    def __init__(self, cuda: Any, device: int) -> None:
        self.begin, self.end, self.device = cuda.event(), cuda.event(), device
        self.section = ""
        self.stream: Any = None
        self.earlier: _Pair | None = None  # the part of the run before this one


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
        self._begun = self._dropped = self._used = 0
        self._failed = ""

    def start(self, section: str) -> None:
        if self._failed or (self._most is not None and self._begun >= self._most):
            return
        try:
            if self._cuda.usable():
                self._begun += 1
                self._open = self._begin(section)
                self._dropped += self._open is None
        except Exception as error:
            self._fail(error)

    def stop(self, late: bool = False) -> None:
        """The end is recorded on the stream of the begin, whichever thread comes here."""
        self._end(late)
        pair, self._open = self._open, None
        if pair is not None:
            self._ended.append(pair)

    def pause(self) -> None:
        self._end()

    def resume(self) -> None:
        """The next part begins; the run is dropped if that cannot be measured."""
        earlier, self._open = self._open, None
        if earlier is None:
            return
        try:
            part = self._begin(earlier.section) if self._cuda.usable() else None
            if part is None:
                self._dropped += 1
                self._give_back(earlier)
            else:
                part.earlier = earlier
            self._open = part
        except Exception as error:
            self._fail(error)

    def _end(self, late: bool = False) -> None:
        """Record the end of the open run, or of a part of it. Drop the run if that is no time: it ended earlier, or a
        capture began in it: an event in a graph cannot be asked."""
        pair = self._open
        if pair is None:
            return
        try:
            if late or not self._cuda.usable():
                self._open = None
                self._dropped += 1
                self._give_back(pair)
            else:
                pair.end.record(pair.stream)
        except Exception as error:
            self._fail(error)

    def take(self) -> KernelWindow:
        """Runs that the GPU has not finished yet are in the next window."""
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
        self._free, self._times, self._counts, self._used = {}, {}, {}, 0

    def _begin(self, section: str) -> _Pair | None:
        """Record the begin of a run or of a part of it; None if the GPU is too far behind."""
        stream = self._cuda.stream()
        free = self._free.setdefault(stream.device_index, [])
        if not free:
            self._read()
        if not free and self._used >= MOST_PAIRS:
            return None
        pair = free.pop() if free else _Pair(self._cuda, stream.device_index)
        self._used += 1
        pair.section, pair.stream = section, stream
        pair.begin.record(stream)
        return pair

    def _read(self) -> None:
        """Note the microseconds of the runs that the GPU has finished, up to the first that it has not."""
        while self._ended and all(part.end.query() for part in _parts(self._ended[0])):
            pair = self._ended.popleft()
            taken = sum(part.begin.elapsed_time(part.end) for part in _parts(pair)) * _US
            self._times.setdefault(pair.section, deque(maxlen=KEPT)).append(taken)
            self._counts[pair.section] = self._counts.get(pair.section, 0) + 1
            self._give_back(pair)

    def _give_back(self, last: _Pair) -> None:
        """The events of a run may be used again."""
        for part in list(_parts(last)):
            part.stream = part.earlier = None
            self._free.setdefault(part.device, []).append(part)
            self._used -= 1

    def _fail(self, error: Exception) -> None:
        """Measure no more: after an error of CUDA, each further call would only repeat it."""
        if not self._failed:
            self._failed = f"timing by CUDA events ended after an error: {type(error).__name__}: {error}"
        self.close()


def _parts(last: _Pair) -> Iterator[_Pair]:
    """The pairs of a run."""
    part: _Pair | None = last
    while part is not None:
        yield part
        part = part.earlier
