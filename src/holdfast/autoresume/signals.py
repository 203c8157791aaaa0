"""Signals as events: they wait until they are asked for, so that none breaks the loop off half-way.

What always holds: a signal that was ignored when we were started stays ignored (nohup, a script's background job),
and what we start has the mask that we were started with.

Does not cover: SIGKILL and SIGSTOP.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Asks for the end of the attempt and of the chain."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""For the training's own ends, such as "save now and go on"."""


class Signals:
    """Waits for signals, and for the end of children. In the main thread, before there is another one."""

    def __init__(self) -> None:
        wanted = {number for number in (*STOPS, *PASSED_ON) if signal.getsignal(number) != signal.SIG_IGN}
        self._wanted = wanted | {signal.SIGCHLD}
        self.mask: set[signal.Signals] = set()
        """What children get."""

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Inside, these signals only answer `wait`."""
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children's exit codes would be lost
        self.mask = {
            signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, self._wanted)
        }
        try:
            yield
        finally:
            while signal.sigtimedwait(self._wanted, 0):
                pass  # one that came at the very end asks for what has happened anyway
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            if before is not None:
                signal.signal(signal.SIGCHLD, before)

    def wait(self, until: float) -> signal.Signals | None:
        """The next signal, SIGCHLD included; None when there was none until then (monotonic seconds)."""
        found = signal.sigtimedwait(self._wanted, max(0.0, until - time.monotonic()))
        return signal.Signals(found.si_signo) if found else None
