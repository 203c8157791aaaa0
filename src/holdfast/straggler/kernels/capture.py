"""Stands between sections and a source of kernel times: it starts with the first open section, stops with the last.

Sections may be nested and run in several threads, in signal handlers and in `__del__`. Which are open is in a table
whose single steps are atomic. Whoever changes the table brings the source to where the table says, if nobody is at that
already; and who is at it looks again when it is done. So nobody waits, and nothing is overlooked.

What always holds: `enter` and `leave` never wait, whatever holds the source, and from wherever they are called; the
source's calls never overlap. In a forked child the source is off: nothing of it is called.
A section whose end never comes (its generator is kept and never finished; an exception of a signal handler came between
its begin and its body) counts as open for `REPORTS_OPEN` reports, in which the source may see less. Once other sections
ended since and it is still open, it is no longer counted, and the report's note says so.
Does not cover: such a section where no other ever ends; two exceptions of signal handlers at once, where one hits the
end of a source's call: the next reports of the same thread repair it; interpreters without the global lock.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from dataclasses import replace
from itertools import count
from threading import get_ident

from .source import REPORTS_OPEN, KernelSource, KernelWindow

PATIENCE = 0.05
"""Seconds that a report waits for a thread that is just starting the source, as the first time may take seconds."""
BUSY = "it was just being started or stopped; what it measured is in the next report"
FORKED = "a forked process has no kernel times"
_POLL = 0.001
_TURN = "turn"
_Claim = list[int]
"""The right of one thread, whose number it holds, to call the source. Each is one of its own."""


class Capture:
    """See the module's docstring."""

    def __init__(self, source: KernelSource) -> None:
        self._source = source
        self._keys = count(1)
        self._open: dict[int, str] = {}  # the outermost first
        self._running = False
        self._turn: dict[str, _Claim] = {}  # of one key: `setdefault` is atomic, and never waits
        self._ended_inside = False
        self._reports: deque[int] = deque(maxlen=REPORTS_OPEN)  # keys below were given before that report
        self._stuck: _Claim | None = None
        self._closing = False
        self._off = ""
        _captures.add(self)

    def enter(self, section: str) -> int:
        """A section was opened: the key to close it."""
        key = next(self._keys)
        try:
            self._open[key] = section
            if not self._running:
                self._settle()
        except BaseException:  # of a signal handler: nobody will close what was not opened
            self._open.pop(key, None)
            raise
        return key

    def leave(self, key: int) -> None:
        """A section was closed. Harmless for one that is not open."""
        self._open.pop(key, None)
        if self._open:
            self._ended_inside = True
        else:
            self._settle()

    def take(self) -> KernelWindow:
        """What the source measured since the last call. Waits for about `PATIENCE` at most."""
        if self._off:
            return KernelWindow(note=self._off)
        forgotten = self._forget()
        claim = self._waited()
        if claim is None:
            return KernelWindow(note=BUSY)
        try:
            window = self._source.take()
        finally:
            self._give_back(claim)
        self._settle()
        return (
            replace(window, note="; ".join(filter(None, (window.note, forgotten)))) if forgotten else window
        )

    def close(self) -> None:
        """Close the source; if another thread is at it, that thread does when it is done."""
        self._closing = True
        self._settle()

    def _settle(self) -> None:
        """Bring the source to where the table says, unless somebody is at that: who is, looks again."""
        turn = self._turn
        while not self._off:
            if not self._closing and self._running is bool(self._open):
                return
            claim = [get_ident()]
            try:
                if turn.setdefault(_TURN, claim) is not claim:
                    return
                self._act()
            finally:
                # Told by the table, not by a variable: an exception may have come before one was set.
                if turn.get(_TURN) is claim:
                    del turn[_TURN]

    def _act(self) -> None:
        # Each state is noted before its call, so that a call that a signal handler's exception ends is not repeated.
        if self._closing:
            if not self._off:
                self._off = "closed"
                self._source.close()
        elif self._running:
            if not self._open:
                self._running = False
                self._source.stop()
        else:
            for outermost in tuple(self._open.values()):
                self._running = True
                self._source.start(outermost)
                break

    def _give_back(self, claim: _Claim) -> None:
        if self._turn.get(_TURN) is claim:
            del self._turn[_TURN]

    def _waited(self) -> _Claim | None:
        """The turn, if it comes soon."""
        claim, deadline = [get_ident()], time.monotonic() + PATIENCE
        while (other := self._turn.setdefault(_TURN, claim)) is not claim:
            if other == claim:  # this is a signal handler within the call; or the claim was left behind
                if self._stuck is other:
                    self._give_back(other)
                    continue
                self._stuck = other
                return None
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
        return claim

    def _forget(self) -> str:
        """Count no longer what was open for `REPORTS_OPEN` reports while others ended within it: a note about it."""
        old = self._reports[0] if len(self._reports) == REPORTS_OPEN else 0
        self._reports.append(next(self._keys))
        if not self._ended_inside:
            return ""
        kept = [(key, name) for key, name in tuple(self._open.items()) if key < old]
        for key, _ in kept:
            self._open.pop(key, None)
        self._ended_inside = False
        if not kept:
            return ""
        names = ", ".join(repr(name) for _, name in kept[:3])
        return f"open for more than {REPORTS_OPEN} reports, and no longer counted as the outermost section: {names}"


_captures: weakref.WeakSet[Capture] = weakref.WeakSet()


def _off_in_child() -> None:
    """A forked child has the source's state, and perhaps the claim of a thread that it does not have."""
    for one in tuple(_captures):
        one._off = FORKED


os.register_at_fork(after_in_child=_off_in_child)
