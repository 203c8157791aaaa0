"""Sections of the training: stretches of code whose runs are timed, and whose GPU kernels where there is a source.

Each run of a section is one `with`, with an object of its own: threads, nested runs of one name and generators never
share one. With `profiling_interval` = n a counter of the section chooses every n-th run, the first included.

What always holds: entering a section takes no lock, and raises nothing: a name that cannot be measured is logged once,
and its body runs as if there were no section. Memory is bounded: the last `KEPT` times of each of at most
`MOST_SECTIONS` sections.
Does not cover: interpreters without the global lock, where a count may miss runs; a report in a signal handler that
interrupts a report.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.prefixed_log import Once

from .log_texts import Failures
from .scores import Statistic, summarise

if TYPE_CHECKING:
    from .kernels.source import Capture

log = logging.getLogger("holdfast.straggler")

MOST_SECTIONS = 1000
"""Further names are not measured: names that count something (steps, batches) would grow without end."""
FULL = (
    "section %r is not measured, nor any further one: there are %d already. A section's name should not contain a step "
    "or a batch number"
)
LONGEST_NAME = 1000
KEPT = 8192
"""Times kept of each section between two reports; older ones are counted, and forgotten."""
KERNELS = "measuring kernels"
"""What is logged where they cannot be."""
_MS = 1e6  # nanoseconds
_CALLED = {False: "detection_section", True: "collective_section"}

SectionContext = AbstractContextManager[None]


class _Skipped:
    """A run that is not measured: `contextlib.nullcontext` in two thirds of its time."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


SKIPPED: SectionContext = _Skipped()


class Section:
    """The times of one section.

    Attributes:
        kept: nanoseconds of the last `KEPT` measured runs since the last `take`.
        count: number of all measured runs, ever.
        skips: number of the next runs that are not measured.
        waits: whether its body waits for other ranks.
    """

    __slots__ = ("_taken", "count", "failures", "kept", "name", "skips", "waits")

    def __init__(self, name: str, failures: Failures, waits: bool = False) -> None:
        self.name, self.failures, self.waits = name, failures, waits
        self.kept: deque[int] = deque(maxlen=KEPT)
        self.count = self._taken = 0
        self.skips = 0

    def take(self) -> tuple[list[float], int]:
        """Milliseconds of the runs since the last call, the last `KEPT` of them, and how many there were."""
        # One by one: another thread may be measuring, and none of its times is lost between a copy and a clear.
        times = [self.kept.popleft() / _MS for _ in range(len(self.kept))]
        number, self._taken = self.count - self._taken, self.count
        return times, max(number, len(times))


class _Run:
    """One run of a section's body: its wall time is measured however it ends. Its attributes are set from outside: an
    `__init__` would take a seventh of the time of a section."""

    __slots__ = ("capture", "key", "profiled", "section", "started")
    section: Section
    capture: Capture | None
    profiled: bool
    key: int
    started: int

    def __enter__(self) -> None:
        if self.capture is not None:
            key = None
            try:
                key = self.capture.enter(self.section.name, self.profiled)
            except Exception as error:
                self.section.failures.log(KERNELS, error)
            if key is None:
                self.capture = None
            else:
                self.key = key
        self.started = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        spent = perf_counter_ns() - self.started
        section = self.section
        if self.capture is not None:
            try:
                self.capture.leave(self.key)
            except Exception as error:
                section.failures.log(KERNELS, error)
        section.kept.append(spent)
        section.count += 1


class Sections:
    """All sections of this process. A section either computes or waits for other ranks: its first use decides."""

    def __init__(self, interval: int, capture: Capture | None, failures: Failures | None = None) -> None:
        self._failures = failures or Failures()
        self._skips = interval - 1
        self._capture = capture
        self._known: dict[str, Section] = {}
        # Of skipped runs whose kernels stay out of the section around them. Its times are in no report.
        self._untold = Section("", self._failures)
        self._once = Once(log)

    def enter(self, name: str, profile_cuda: bool, waits: bool = False) -> SectionContext:
        """The context manager of the next run of a section; `waits`: whether its body waits for other ranks.

        Nothing is measured where the name is no text of 1 to `LONGEST_NAME` characters, or that of a section of the
        other kind; each such section is logged once.
        """
        try:
            section = self._known[name]
            is_new = section.waits is not waits
        except (KeyError, TypeError):
            is_new = True
        if is_new:
            part = self._part(name)
            added = self._failures.guarded(part, lambda: self.section(name, waits), None)
            if added is None:
                return SKIPPED
            section = added
        skips = section.skips
        if skips:
            section.skips = skips - 1
            if profile_cuda or self._capture is None:
                return SKIPPED
            section = self._untold
        else:
            section.skips = self._skips
        run = _Run()
        run.section = section
        run.capture = self._capture
        if self._capture is not None:
            run.profiled = profile_cuda
        return run

    @property
    def waiting(self) -> frozenset[str]:
        """Names of the sections that wait for other ranks."""
        return frozenset(section.name for section in tuple(self._known.values()) if section.waits)

    def take(self) -> dict[str, dict[Statistic, float]]:
        """The summaries, in milliseconds, of the sections that ran since the last call."""
        found = {}
        for section in tuple(self._known.values()):
            times, number = section.take()
            if times:
                found[section.name] = summarise(times, number)
        return found

    def section(self, name: str, waits: bool) -> Section | None:
        """The section, which may be new; None if it is one too many. ValueError for a name that cannot be one."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(
                f"{_CALLED[waits]}: name must be a text of 1 to {LONGEST_NAME} characters, not {name!r:.80}"
            )
        found = self._known.get(name)
        if found is not None and found.waits is not waits:
            raise ValueError(
                f"{_CALLED[waits]}: {name!r} is a {_CALLED[not waits]} already; a name is either for work or for "
                "waiting for other ranks"
            )
        if found is None and len(self._known) >= MOST_SECTIONS:
            self._once(logging.WARNING, FULL, name, MOST_SECTIONS)
            return None
        # Atomic: another thread or a signal handler may have added it just now.
        return found or self._known.setdefault(name, Section(name, self._failures, waits))

    def _part(self, name: object) -> str:
        """What is logged once: for each name that is a section, and for all others together."""
        known = isinstance(name, str) and name in self._known
        return f"measuring section {name!r}" if known else "measuring a section"
