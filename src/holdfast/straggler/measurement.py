"""One run of a section's body, measured or skipped, and the times of one section.

A section hands out *measurements*, one for each `with`, from a list: taking the last element of a list is atomic, so
threads, nested sections of one name and generators each get one of their own without a lock or a thread's number, and
it goes back on the list when it ends. With `profiling_interval` = n > 1 the list also holds the n - 1 entries that are
skipped after each measured one, and a skipped entry runs no Python code at all.

What always holds: the memory of a section is bounded: its last `KEPT` times.
Does not cover: interpreters without the global lock, where a count may miss entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .kernels.capture import Capture

KEPT = 8192
"""Times kept of each section between two reports; older ones are counted, and forgotten."""
_MS = 1e6  # nanoseconds


class SectionContext(Protocol):
    """What `with` needs."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class _Skipped:
    """Does nothing, at a third of the cost of two empty Python methods: both are calls of C functions that take what
    `with` gives them and return nothing that is true."""

    __slots__ = ()
    __enter__ = [].clear
    __exit__ = "".format


SKIPPED: SectionContext = _Skipped()


def _nothing() -> None:
    """Nobody has collected anything."""


class Section:
    """The times of one section, and the plan of its next entries."""

    __slots__ = ("collected", "count", "free", "kept", "name", "skips_left", "total_before")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: deque[int] = deque(maxlen=KEPT)
        self.count = 0  # of all measured entries, ever
        self.total_before = 0
        self.skips_left = 0
        self.collected: Callable[[], object] = _nothing
        """Called before the times are read: who measures in C hands over what it has collected."""
        # Measurements that are not in use: without and with GPU kernels.
        self.free: tuple[list[SectionContext], list[SectionContext]] = ([], [])

    def take(self) -> tuple[list[float], int]:
        """Milliseconds of the entries since the last call, the last `KEPT` of them, and how many there were."""
        self.collected()
        # One by one: another thread may be measuring, and none of its times is lost between a copy and a clear.
        times = [self.kept.popleft() / _MS for _ in range(len(self.kept))]
        total = self.count
        number, self.total_before = total - self.total_before, total
        return times, max(number, len(times))


class Measurement:
    """One run of a section's body: wall time, however the body ends."""

    __slots__ = ("_free", "_section", "_started")

    def __init__(self, section: Section, free: list[SectionContext]) -> None:
        self._section = section
        self._free = free
        self._started = 0

    def __enter__(self) -> None:
        self._started = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        spent = perf_counter_ns() - self._started
        section = self._section
        section.kept.append(spent)
        section.count += 1
        self._free.append(self)


class PlannedMeasurement(Measurement):
    """The first of every n entries: beginning, it plans the skipped ones, and ending, itself after them.

    The lines of `Measurement` stand here again on purpose: this is the hot path, and calling them would cost a call.
    """

    __slots__ = ("_plan", "_skips")

    def __init__(self, section: Section, plan: list[SectionContext], skips: list[SectionContext]) -> None:
        super().__init__(section, plan)
        self._plan = plan
        self._skips = skips

    def __enter__(self) -> None:
        self._plan.extend(self._skips)
        self._started = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        spent = perf_counter_ns() - self._started
        section = self._section
        section.kept.append(spent)
        section.count += 1
        plan = self._plan
        if not plan or plan[0] is SKIPPED:  # else an entry within this one, or another thread's, was faster
            plan.insert(0, self)


class CapturingMeasurement(Measurement):
    """The same, and the GPU kernels that the body launches are measured."""

    __slots__ = ("_capture", "_key")

    def __init__(self, section: Section, free: list[SectionContext], capture: Capture) -> None:
        super().__init__(section, free)
        self._capture = capture
        self._key = 0

    def __enter__(self) -> None:
        key = self._capture.enter(self._section.name)
        try:
            self._key = key
            self._started = perf_counter_ns()
        except BaseException:  # of a signal handler: `with` calls no `__exit__` then
            self._capture.leave(key)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        spent = perf_counter_ns() - self._started
        self._capture.leave(self._key)  # before another thread may have this measurement
        section = self._section
        section.kept.append(spent)
        section.count += 1
        self._free.append(self)
