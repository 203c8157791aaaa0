"""The page that the launcher and the monitor share: which monitor is in charge, which cycle runs, when it last looked.

The launcher writes epoch, cycle and phase; the monitor in charge writes the rest, which is all that its successor
must know of it. Every field is one aligned 8-byte store. A monitor whose epoch is not the page's is superseded and
must not act any more.
"""

from __future__ import annotations

import mmap
import os

from ..board.layout import check_file
from .gaps import KEPT, Gaps

FILE = "control"
MAGIC = 0x31304C5254434648  # "HFCTRL01"
SIZE = 4096

# Words of the page. The gaps are a ring of `KEPT` pairs (start, end).
_MAGIC, _EPOCH, _CYCLE, _PHASE, _TICK, _LOOKED, _NEXT_LOOK, _GAP_COUNT, _GAPS = range(9)

IDLE, RUNNING, STOPPING = 0, 1, 2  # phases: verdicts are given in RUNNING only


class ControlPage:
    """Access to the page; `create` in the launcher, the constructor in the monitor. BoardError if it is no file of
    this user's."""

    def __init__(self, directory: str) -> None:
        path = os.path.join(directory, FILE)
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            check_file(path, handle)
            self._map = mmap.mmap(handle, SIZE)
        finally:
            os.close(handle)
        self._words = memoryview(self._map).cast("Q")
        if self._words[_MAGIC] != MAGIC:
            raise ValueError(f"{directory}/{FILE} is not a control page of this version of holdfast")

    @classmethod
    def create(cls, directory: str) -> ControlPage:
        """A fresh page, allocated in full so that no later store can fail."""
        handle = os.open(
            os.path.join(directory, FILE), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            os.posix_fallocate(handle, 0, SIZE)
            os.pwrite(handle, MAGIC.to_bytes(8, "little"), 0)
        finally:
            os.close(handle)
        return cls(directory)

    @property
    def epoch(self) -> int:
        """Number of the monitor in charge."""
        return self._words[_EPOCH]

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._words[_EPOCH] = value

    @property
    def cycle(self) -> int:
        """The restart cycle whose boards are to be watched."""
        return self._words[_CYCLE]

    @property
    def phase(self) -> int:
        """IDLE, RUNNING or STOPPING."""
        return self._words[_PHASE]

    def enter(self, phase: int, cycle: int) -> None:
        """Set cycle and phase; the phase last, so that a cycle is never watched before its boards are there."""
        self._words[_PHASE] = IDLE
        self._words[_CYCLE] = cycle
        self._words[_PHASE] = phase

    @property
    def tick(self) -> int:
        """Rises with every look of the monitor in charge."""
        return self._words[_TICK]

    @property
    def looked(self) -> tuple[int, int]:
        """When a monitor last looked and when the next look was planned (monotonic nanoseconds; 0: none yet)."""
        return self._words[_LOOKED], self._words[_NEXT_LOOK]

    def beat(self, looked_ns: int, next_ns: int) -> None:
        """The monitor has looked, and plans its next look."""
        self._words[_LOOKED] = looked_ns
        self._words[_NEXT_LOOK] = next_ns
        self._words[_TICK] += 1

    @property
    def gaps(self) -> Gaps:
        """The stretches in which the world stood still, as all monitors of this job have noticed them."""
        count = self._words[_GAP_COUNT]
        at = [_GAPS + 2 * (number % KEPT) for number in range(max(0, count - KEPT), count)]
        return Gaps(tuple((self._words[word], self._words[word + 1]) for word in at))

    def add_gap(self, start_ns: int, end_ns: int) -> None:
        """One more; the count last, so that a monitor which dies in between has added none.

        One that begins where the last began is the same gap, noticed again by a successor: it is not counted twice.
        """
        count = self._words[_GAP_COUNT]
        last = _GAPS + 2 * ((count - 1) % KEPT)
        if count and self._words[last] == start_ns:
            self._words[last + 1] = end_ns
            return
        at = _GAPS + 2 * (count % KEPT)
        self._words[at], self._words[at + 1] = start_ns, end_ns
        self._words[_GAP_COUNT] = count + 1

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._map.close()
