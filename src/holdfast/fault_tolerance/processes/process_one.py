"""A command as process 1 of a container: it continues in a child, and process 1 only serves that child.

The kernel gives all orphans of a container to process 1, also those of a `kubectl exec` that has ended. The child gets
only the orphans from below itself, as a subreaper, so that it may end them without a look at what they are. Process 1
passes signals on, collects what has ended, and ends as the child does. Each signal, also Ctrl-C, comes once.

Does not cover: a container without room for one more process, in which the command stays process 1. The end of
process 1: the kernel then kills all that runs in the container. Reads from a terminal, which are for its foreground
group: ranks and attempts have sessions of their own.
Source: pid_namespaces(7), sigwait(3).
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

DEFECTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT),
}
"""Signals of a process's own defects, which are not passed on."""
OF_TERMINAL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""By which a terminal stops a process, but not process 1: they are not passed on either."""


def leave_process_one() -> None:
    """Return in a child if this is process 1, else at once. To be called before there is another thread."""
    if os.getpid() != 1:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the exit code would be lost
    passed = signal.valid_signals() - DEFECTS - OF_TERMINAL
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    if child:
        _serve(child, passed)
    with suppress(OSError):
        os.setpgid(0, 0)  # what the group of process 1 gets comes once, through it
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(child: int, passed: set[signal.Signals]) -> NoReturn:
    while True:
        number = signal.sigwait(passed)
        if number != signal.SIGCHLD:
            os.kill(child, number)  # it has not been collected: the pid is its own
            continue
        ended = -1
        while ended:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
