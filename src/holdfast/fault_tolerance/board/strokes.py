"""The hot path of a board: heartbeats and section edges, a few hundred nanoseconds each.

What always holds: from the odd sequence number to the next even one there is no call and no jump that is taken
(CPython 3.10 looks for signals at those, later versions at calls and loops only), so the interpreter runs no signal
handler there, and no exception can leave a write half done; only the death of the process can. The check whether a
section is open lies on the same stretch. The lock is re-entrant, because a signal handler may send a heartbeat in the
middle of a heartbeat.

Not covered: the price of a tracing profiler or a debugger in the rank, which may run code between any two lines.
"""

from __future__ import annotations

import threading
from operator import index
from time import monotonic_ns
from typing import Protocol

from .counts import Counts
from .layout import (
    CHECKPOINT_STEP,
    CHECKPOINTING,
    CLOSED,
    END,
    EVENT_WORDS,
    HEARTBEAT,
    HEARTBEATS,
    KIND_BITS,
    LARGEST,
    LAST_EDGE,
    LAST_HEARTBEAT,
    OUT_SINCE,
    RING,
    RING_MASK,
    SECTIONS_OPENED,
    SEQUENCE,
    SINCE,
    SPENT,
    START,
    STEP,
    STEPPED,
)

_STEP_LIMIT = 1 << 62


class Observer(Protocol):
    """Is told inside the writer's lock; must be quick. Nanoseconds.

    Of the first heartbeat (with a gap of 0), and of each interval that may be the longest of its kind so far; shorter
    ones need not be told.
    """

    def heartbeat(self, now_ns: int, gap_ns: int) -> None: ...
    def in_section(self, name: str, spent_ns: int) -> None: ...
    def out_of_section(self, spent_ns: int) -> None: ...


class Strokes(Counts):
    """Stores into the words of one rank's page. What it counts is kept here and only ever written to the page, except
    the totals of each section: only the page has those."""

    __slots__ = (
        "_lock",
        "_observe_heartbeat",
        "_observe_inside",
        "_observe_outside",
        "_opened",
        "_slots",
        "_words",
    )

    def __init__(self, words: memoryview, observer: Observer) -> None:
        self._observe_heartbeat = observer.heartbeat
        self._observe_inside = observer.in_section
        self._observe_outside = observer.out_of_section
        self._lock = threading.RLock()
        self._words = words
        self._bind(words)
        # A predecessor on this page left its counts, and an odd number if it was killed in the middle of a write.
        self._sequence: int = (words[SEQUENCE] + 1) & ~1
        self._beats: int = words[HEARTBEATS]
        self._opened_ever: int = words[SECTIONS_OPENED]
        self._slots: dict[str, int] = {}
        self._opened: dict[str, int] = {}  # name → since
        self._out_since = 0  # when the last open section closed; 0 while one is open and before the first
        self._last_beat = 0  # 0: none yet
        self._longest_gap = -1  # between two heartbeats, as the observer knows it
        self._over = False  # supervision has ended

    def heartbeat(self, step: int | None = None) -> None:
        """The rank is alive and, if given, at this step (an integer of 62 bits: TypeError, ValueError otherwise)."""
        if step is not None:
            self._heartbeat_at(step)
            return
        with self._lock:
            now = monotonic_ns()
            words = self._words
            self._beats = beats = self._beats + 1
            sequence = self._sequence
            entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
            words[SEQUENCE] = sequence + 1
            words[HEARTBEATS] = beats
            words[LAST_HEARTBEAT] = now
            words[entry] = now
            words[entry + 1] = HEARTBEAT
            words[SEQUENCE] = self._sequence = sequence + 2
            last, self._last_beat = self._last_beat, now
            gap = now - last if last else 0
            if gap > self._longest_gap:
                self._longest_gap = gap
                self._observe_heartbeat(now, gap)

    def _heartbeat_at(self, step: int) -> None:
        step = index(step)
        if not -_STEP_LIMIT < step < _STEP_LIMIT:
            raise ValueError(f"step {step} is out of range")
        with self._lock:
            now = monotonic_ns()
            words = self._words
            self._beats = beats = self._beats + 1
            sequence = self._sequence
            entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
            words[SEQUENCE] = sequence + 1
            words[HEARTBEATS] = beats
            words[LAST_HEARTBEAT] = now
            words[STEP] = step + 1
            words[entry] = now
            words[entry + 1] = STEPPED
            words[entry + 2] = step
            words[SEQUENCE] = self._sequence = sequence + 2
            last, self._last_beat = self._last_beat, now
            gap = now - last if last else 0
            if gap > self._longest_gap:
                self._longest_gap = gap
                self._observe_heartbeat(now, gap)

    def start_section(self, name: str) -> bool:
        """Open a section; False if it is open already. Sections may nest and overlap."""
        try:
            slot = self._slots[name]
        except KeyError:
            slot = self._new_slot(
                name
            )  # it logs, so without the lock: a full pipe must not stop other threads
        with self._lock:
            now = monotonic_ns()
            opened = self._opened
            if name not in opened:
                opened[name] = now
                out_since, self._out_since = self._out_since, 0
                words = self._words
                self._opened_ever = ever = self._opened_ever + 1
                sequence = self._sequence
                entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
                words[SEQUENCE] = sequence + 1
                words[SECTIONS_OPENED] = ever
                words[SINCE + slot] = now
                words[OUT_SINCE] = 0
                words[LAST_EDGE] = now
                words[entry] = now
                words[entry + 1] = START | slot + 1 << KIND_BITS
                words[SEQUENCE] = self._sequence = sequence + 2
                if out_since:
                    self._observe_outside(now - out_since)
                return True
        return False

    def end_section(self, name: str) -> bool:
        """Close a section; False if it is not open."""
        with self._lock:
            now = monotonic_ns()
            opened = self._opened
            if name in opened:
                since = opened[name]
                del opened[name]
                self._out_since = out_since = now * (not opened)
                slot = self._slots[name]
                words = self._words
                spent = now - since
                total = words[SPENT + slot] + spent & LARGEST
                closed = words[CLOSED + slot] + 1 & LARGEST
                sequence = self._sequence
                entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
                words[SEQUENCE] = sequence + 1
                words[SINCE + slot] = 0
                words[SPENT + slot] = total
                words[CLOSED + slot] = closed
                words[OUT_SINCE] = out_since
                words[LAST_EDGE] = now
                words[entry] = now
                words[entry + 1] = END | slot + 1 << KIND_BITS
                words[SEQUENCE] = self._sequence = sequence + 2
                if name == CHECKPOINTING:  # by itself: on the stretch above it would take a jump
                    words[CHECKPOINT_STEP] = words[STEP]
                self._observe_inside(name, spent)
                return True
        return False

    def _new_slot(self, name: str) -> int:
        raise NotImplementedError
