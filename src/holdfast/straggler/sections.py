"""All sections of this process: which there are, what their next entries are, and what they measured.

What always holds: there are at most `MOST_SECTIONS`; the common case of an entry takes no lock (see `measurement`).
The lock of the others is held for a few steps that wait for nothing, not even for the log. A signal handler or a
`__del__` that enters a section within them takes it again, and finds each list perhaps emptier than it was just asked;
a forked child has a lock of its own.
Does not cover: interpreters without the global lock; a report in a signal handler that interrupts a report.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .measurement import (
    SKIPPED,
    CapturingMeasurement,
    Measurement,
    PlannedMeasurement,
    Section,
    SectionContext,
)
from .statistic import Statistic, summarise

if TYPE_CHECKING:
    from .kernels.capture import Capture

log = logging.getLogger("holdfast.straggler")

MOST_SECTIONS = 1000
"""Further names are not measured: names that count something (steps, batches) would grow without end."""
LONGEST_NAME = 1000
_STRETCH = 1024
"""Entries that are marked as skipped at a time: a long profiling interval must not become a long list."""
Plans = dict[str, list[SectionContext]]
_CALLED = {False: "detection_section", True: "collective_section"}


class Sections:
    """All sections of this process. `plain` and `capturing` are the plans, by name, for entries without and with GPU
    kernels; they are given by whoever reads them on the hot path, and belong to this object until `close`.

    A section either computes or waits for other ranks: its first use decides.
    """

    def __init__(self, interval: int, capture: Capture | None, plain: Plans, capturing: Plans) -> None:
        self._interval = interval
        self._capture = capture
        self._plans = (plain, capturing)
        # Apart from the others, so that no use of a name by the wrong call is overlooked.
        self._waiting_plans: tuple[Plans, Plans] = ({}, {})
        self.waiting: set[str] = set()
        """Names of the sections that wait for other ranks; their times are never compared as work is."""
        self._sections: dict[str, Section] = {}
        self._lock = threading.RLock()
        self._full = ""  # the first name that was one too many
        self._full_told = False
        self.closed = False
        _all.add(self)

    def enter(self, name: str, profile_cuda: bool) -> SectionContext:
        """The slow path of an entry: its plan is empty, or there is none. ValueError for what is no name."""
        with self._lock:
            found = self._enter(name, profile_cuda, False)
        self._tell()
        return found

    def enter_waiting(self, name: str, profile_cuda: bool) -> SectionContext:
        """An entry of a section that waits for other ranks. ValueError for what is no name, or one that computes."""
        plan = self._waiting_plans[bool(profile_cuda)].get(name)
        try:
            if plan:
                return plan.pop()
        except IndexError:  # another thread took the last one
            pass
        with self._lock:
            found = self._enter(name, profile_cuda, True)
        self._tell()
        return found

    def waits(self, name: str) -> Callable[[int], None]:
        """A function that adds one wait, in nanoseconds, to a section that waits for other ranks. Any thread may call
        it, not several at once; after `close` it is harmless. ValueError as above."""
        with self._lock:
            section = self._section(name, True)
        self._tell()

        def add(spent: int) -> None:
            if section is not None:
                section.kept.append(spent)
                section.count += 1

        return add

    def entry(self, name: str, profile_cuda: bool) -> Callable[[], SectionContext]:
        """A function that gives the next entry of one section: for callables, whose section never changes. It stays
        harmless when this object was closed."""
        with self._lock:
            self._section(name, False)
        self._tell()
        plan = self._plans[bool(profile_cuda)].get(name)
        enter = self.enter
        if plan is None:
            return lambda: SKIPPED

        def next_entry() -> SectionContext:
            try:
                return plan.pop() if plan else enter(name, profile_cuda)
            except IndexError:  # another thread took the last one
                return enter(name, profile_cuda)

        return next_entry

    def direct(self, name: str) -> Section | None:
        """The section itself, for who measures each of its runs without an entry: one more in `kept` (nanoseconds) and
        in `count`, at the latest when `collected` is called. None where that is not all: entries are skipped, or the
        GPU's kernels are measured."""
        if self._interval != 1 or self._capture is not None:
            return None
        with self._lock:
            section = self._section(name, False)
        self._tell()
        return section

    def take(self) -> dict[str, dict[Statistic, float]]:
        """The summaries, in milliseconds, of the sections that ran since the last call."""
        found = {}
        for name, section in list(self._sections.items()):
            times, number = section.take()
            if times:
                found[name] = summarise(times, number)
        return found

    def close(self) -> None:
        """Give the plans back, empty."""
        self.closed = True
        for plans in (*self._plans, *self._waiting_plans):
            plans.clear()

    def _enter(self, name: str, profile_cuda: bool, waits: bool) -> SectionContext:
        section = self._section(name, waits)
        if section is None:
            return SKIPPED
        capturing = bool(profile_cuda) and self._capture is not None
        if self._interval == 1:
            return self._measurement(section, capturing)
        return self._next_planned(section, capturing)

    def _section(self, name: str, waits: bool) -> Section | None:
        """The section, new or known; None if it is one too many."""
        if isinstance(name, str) and name in self._sections:
            if waits is not (name in self.waiting):
                raise ValueError(
                    f"{_CALLED[waits]}: {name!r} is a {_CALLED[not waits]} already; a name is either for work or for "
                    "waiting for other ranks"
                )
            return self._sections[name]
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(
                f"{_CALLED[waits]}: name must be a text of 1 to {LONGEST_NAME} characters, not {name!r:.80}"
            )
        if len(self._sections) >= MOST_SECTIONS:
            self._full = self._full or name
            return None
        # A signal handler may have made it just now.
        section = self._sections.setdefault(name, Section(name))
        if waits:
            self.waiting.add(name)
        plain, capturing = self._plans_of(name)
        if self._interval == 1 and self._capture is not None:
            plain[name], capturing[name] = section.free
        else:
            # Skipped entries are the same for both; and so are measured ones where there is nothing to capture.
            plain[name] = capturing[name] = section.free[0] if self._interval == 1 else []
        return section

    def _tell(self) -> None:
        """Outside of the lock: whoever holds the log's own may be on the way here."""
        if self._full and not self._full_told:
            self._full_told = True
            log.warning(
                "section %r is not measured, nor any further one: there are %d already. A section's name "
                "should not contain a step or a batch number",
                self._full,
                MOST_SECTIONS,
            )

    def _plans_of(self, name: str) -> tuple[Plans, Plans]:
        return self._waiting_plans if name in self.waiting else self._plans

    def _measurement(self, section: Section, capturing: bool) -> SectionContext:
        free = section.free[capturing]
        used = _popped(free) if self._interval > 1 else None
        if used is not None:
            return used
        if capturing and self._capture is not None:
            return CapturingMeasurement(section, free, self._capture)
        return Measurement(section, free)

    def _next_planned(self, section: Section, capturing: bool) -> SectionContext:
        plan = self._plans_of(section.name)[0].get(section.name)
        if plan is None:  # closed while a thread was on its way here
            return SKIPPED
        planned = _popped(plan)
        if planned is not None:  # another thread was first
            return planned
        if section.skips_left > 0:  # a long interval: the plan held its first stretch only
            self._skip(section, plan)
            return _popped(plan) or SKIPPED
        if self._capture is None and self._interval <= _STRETCH:
            return PlannedMeasurement(section, plan, [SKIPPED] * (self._interval - 1))
        section.skips_left = self._interval - 1
        self._skip(section, plan)
        return self._measurement(section, capturing)

    @staticmethod
    def _skip(section: Section, plan: list[SectionContext]) -> None:
        stretch = max(0, min(section.skips_left, _STRETCH))
        section.skips_left -= stretch
        plan.extend([SKIPPED] * stretch)


def _popped(entries: list[SectionContext]) -> SectionContext | None:
    """The last; None if there is none, or none any more."""
    try:
        return entries.pop()
    except IndexError:
        return None


_all: weakref.WeakSet[Sections] = weakref.WeakSet()


def _free_in_child() -> None:
    """A forked child does not have the thread that may have held the lock."""
    for sections in tuple(_all):
        sections._lock = threading.RLock()


os.register_at_fork(after_in_child=_free_in_child)
