"""One attempt from its start to the end of its last process, and what is passed on to it meanwhile.

What always holds: when it is over nothing of it runs that SIGKILL can end, so the next one finds its ports, GPUs and
files free. Whoever cancels gives it time to save. Only a second Ctrl-C ends it at once: schedulers repeat SIGTERM.

Does not cover: what its end means (`outcome`).
"""

from __future__ import annotations

import signal
import time

from .command import Command
from .log import listed, say, say_undead
from .signals import PASSED_ON, STOPS, Signals

PATIENCE = 10.0
"""Seconds in which what an attempt left behind may end by itself; ft_launcher's monitor needs some after its death."""

STOP_PATIENCE = 1860.0
"""The same after the attempt was told to end: a little more than ft_launcher gives ranks to save (--term-timeout)."""

LOOK = 0.1


class Run:
    """Watches a command that is an attempt."""

    def __init__(self, command: Command, number: int, signals: Signals) -> None:
        self._command, self._number, self._signals = command, number, signals
        self.cancelled_by: signal.Signals | None = None
        """The signal by which somebody cancelled the chain."""
        self._killed = False

    def watch(self) -> int:
        """Wait for its very end; returns its exit code, -n when signal n ended it, or will once the kernel lets go."""
        while (code := self._command.poll()) is None:
            if self._killed:
                return -signal.SIGKILL  # said already: even that has not ended it
            self._answer(self._signals.wait(time.monotonic() + 60.0))
        self._end_the_rest()
        return code

    def _answer(self, came: signal.Signals | None) -> None:
        if came in PASSED_ON:
            self._command.signal(came)
        elif came in STOPS and self.cancelled_by is None:
            self.cancelled_by = came
            say(
                f"{came.name}: passed on to attempt {self._number}, which may save and end; none will follow. "
                f"Ctrl-C{' once more' if came is signal.SIGINT else ''} ends it at once"
            )
            self._command.signal(came)
        elif came is signal.SIGINT:
            say(f"SIGINT again: attempt {self._number} is killed")
            say_undead(self._command.kill())
            self._killed = True

    def _end_the_rest(self) -> None:
        until = time.monotonic() + (PATIENCE if self.cancelled_by is None else STOP_PATIENCE)
        told = False
        while left := self._command.left():
            if time.monotonic() > until:
                say(
                    f"attempt {self._number} has ended; what it has left running is ended now: {listed(left)}"
                )
                say_undead(self._command.sweep())
                return
            if not told:
                say(f"attempt {self._number} has ended; waiting for what it has left running: {listed(left)}")
                told = True
            self._answer(self._signals.wait(time.monotonic() + LOOK))
