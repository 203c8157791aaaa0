"""Signals that are meant for the training never end its supervision, not even while a monitor is being started.

Schedulers signal every process of a job at once. A monitor ignores their signals as soon as it runs; whoever
starts one does so with these signals blocked (a child inherits that), because its interpreter needs a while.
Does not cover: SIGKILL and SIGSTOP; a monitor that gets one of these is replaced.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGPIPE,
)


@contextmanager
def born_deaf() -> Iterator[None]:
    """A process that this thread starts inside does not get these signals; this thread gets them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """From now on this process ignores them; those that came since it was born are dropped."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
