"""The interface of a source of kernel times, and what stands between it and the sections of the training.

A source measures between `start` and `stop`. `Capture` starts it with the first open section and stops it with the
last, because sections may be nested and may run in several threads; it pauses it while a section that is not to be
profiled is open within one that is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from ..scores import Summary

PATIENCE = 0.05
"""Seconds that a report waits for a thread that is just starting the source, as the first time may take seconds."""
BUSY = "it was just being started or stopped; what it measured is in the next report"
FORKED = "a forked process has no kernel times"


@dataclass(frozen=True)
class KernelWindow:
    """What a source measured between two reports. Times are in microseconds.

    Attributes:
        compute: kernels that compute, by name and launch shape.
        collectives: kernels that wait for other ranks as well. They are never scored; they show who arrives last.
        records: number of times that were measured.
        dropped: number of times that are known to be lost.
        note: why it saw less than it could, one clause; empty if it saw all that it should.
        by_section: whether the names are those of sections, whose whole GPU time each is, and not of kernels.

    Does not cover: kernels that ran while the source was not measuring; reports give their share only where the source
    can know it.
    """

    compute: Mapping[str, Summary] = field(default_factory=dict)
    collectives: Mapping[str, Summary] = field(default_factory=dict)
    records: int = 0
    dropped: int = 0
    note: str = ""
    by_section: bool = False

    def apart(self, waiting: Collection[str]) -> KernelWindow:
        """The same, where sections that wait for other ranks are no compute: a rank that waits is not slow."""
        if not self.by_section or not any(name in waiting for name in self.compute):
            return self
        compute = {name: found for name, found in self.compute.items() if name not in waiting}
        waits = {name: found for name, found in self.compute.items() if name in waiting}
        return replace(self, compute=compute, collectives={**self.collectives, **waits})


class KernelSource:
    """Measures the GPU kernels that this process launches between `start` and `stop`. None of its calls raises.

    They may come from any thread, and never at once: `Capture` sees to that, so a source needs no lock. This one, named
    `none`, has no kernels: there is no GPU, or nothing that could time them.
    """

    name = "none"
    """The name in reports: `cupti`, `cuda_events` or `none`."""

    def __init__(self, reason: str = "no GPU") -> None:
        """`reason`: why no better source is used, one clause; empty for the best."""
        self.reason = reason

    def start(self, section: str) -> None:
        """Measure the kernels launched from now on; `section` is the outermost open one. Never twice in a row."""

    def stop(self, late: bool = False) -> None:
        """Measure no more. Called from any thread; `late`: the section ended some time ago."""

    def pause(self) -> None:
        """Leave out kernels launched from now on, until `resume`: both come between a `start` and its `stop`."""

    def resume(self) -> None:
        """Measure again."""

    def take(self) -> KernelWindow:
        """Return what was measured since the last call. Never waits for the GPU."""
        return KernelWindow()

    def close(self) -> None:
        """Give back what it holds. Called once, at the end; nothing is called after it."""


class Capture:
    """Starts a source with the first open section, and stops it with the last.

    A thread that changes the set of open sections brings the source in line with it. If another thread is calling the
    source, that thread checks again after its call. So `enter` and `leave` never wait, also not in a signal handler.
    In a forked child the source is off.

    Does not cover: kernels that other threads launch while one has paused the source, which are left out as well; a
    section that never ends, in which the source stays started; an exception of a signal handler between taking the lock
    and the call, after which each report says that the source is busy; interpreters without the global lock.
    """

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._process = os.getpid()
        self._lock = threading.Lock()  # held while the source is called
        self._keys = count()
        # Name and thread of each profiled section; the outermost first.
        self._open: dict[int, tuple[str, int]] = {}
        # The threads of sections within these that are not to be profiled.
        self._left_out: dict[int, int] = {}
        self._running = self._paused = self._closing = self._closed = False
        self._late = False  # the last section ended while another thread was calling the source

    def enter(self, section: str, profiled: bool = True) -> int | None:
        """A section was opened: the key to close it. None for one that changes nothing: it is not to be profiled, and
        not within one that is, in this thread."""
        thread = threading.get_ident()
        if not profiled and all(of != thread for _, of in tuple(self._open.values())):
            return None
        key = next(self._keys)
        if profiled:
            self._open[key] = (section, thread)
        else:
            self._left_out[key] = thread
        try:
            if not self._running or self._left_out:
                self._settle()
        except BaseException:  # of a signal handler: what was not opened is never closed
            self._open.pop(key, None)
            self._left_out.pop(key, None)
            raise
        return key

    def leave(self, key: int) -> None:
        """A section was closed. Harmless for one that is not open."""
        self._open.pop(key, None)
        if self._left_out:
            self._left_out.pop(key, None)
            self._drop_left_out()
        if not self._open:
            self._settle()
            self._late = self._running and not self._open
        elif self._paused or self._left_out:
            self._settle()

    def take(self) -> KernelWindow:
        """Return what the source measured since the last call. Waits for at most `PATIENCE` seconds."""
        if os.getpid() != self._process:
            return KernelWindow(note=FORKED)
        if not self._lock.acquire(timeout=PATIENCE):
            return KernelWindow(note=BUSY)
        try:
            window = KernelWindow(note="closed") if self._closed else self._source.take()
        finally:
            self._lock.release()
        self._drop_left_out()
        self._settle()
        return window

    def close(self) -> None:
        """Close the source; if another thread is calling it, that thread does."""
        self._closing = True
        self._settle()

    def _drop_left_out(self) -> None:
        """Of threads with no profiled section any more: some never end, and each step would look at all of them."""
        # Read first, so that a section opened by another thread meanwhile has its profiled one in `open_in`.
        left_out = tuple(self._left_out.items())
        open_in = {thread for _, thread in tuple(self._open.values())}
        for key, thread in left_out:
            if thread not in open_in:
                self._left_out.pop(key, None)

    def _settle(self) -> None:
        while self._is_due() and self._lock.acquire(blocking=False):
            try:
                self._act()
            finally:
                self._lock.release()

    def _is_due(self) -> bool:
        if self._closed or os.getpid() != self._process:
            return False
        if self._closing or (self._late and self._running) or self._running is not bool(self._open):
            return True
        return self._running and self._paused is not self._pauses()

    def _pauses(self) -> bool:
        """Whether the innermost open section of some thread is not to be profiled, and one around it is."""
        innermost = {thread: key for key, (_, thread) in tuple(self._open.items())}
        return any(key > innermost.get(thread, key) for key, thread in tuple(self._left_out.items()))

    def _act(self) -> None:
        # Each state is noted before its call, so that a call that a signal handler's exception ends is not repeated.
        outermost = next((section for section, _ in tuple(self._open.values())), None)
        if self._closing:
            if not self._closed:
                self._closed = True
                self._source.close()
        elif self._running and (outermost is None or self._late):
            late, self._late, self._running = self._late, False, False
            if self._paused:
                self._paused = False
                self._source.resume()
            self._source.stop(late)
        elif not self._running and outermost is not None:
            self._late, self._running = False, True
            self._source.start(outermost)
        elif self._running and self._paused is not self._pauses():
            self._paused = not self._paused
            if self._paused:
                self._source.pause()
            else:
                self._source.resume()
