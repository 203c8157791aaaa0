"""The launcher as a child subreaper: the processes that a rank leaves behind become the launcher's children.

So they are found and ended before the rank's successor starts (:class:`Sweep`), and reaped when they end by themselves.
torch's shared-memory manager removes its files two seconds after its last user has ended: no restart waits for that.
The launcher waits at its own end (:func:`end_managers`); a manager that has not ended by a later sweep is killed.
Source: prctl(2), PR_SET_CHILD_SUBREAPER.
All that it adopts is the ranks': as process 1 of a container it would adopt others' orphans as well, so the commands
leave process 1 (:mod:`...processes.process_one`).
Does not cover: a process that even SIGKILL cannot end; it is logged. A program that is process 1 and calls
`launcher.main` itself. What others start below a rank, such as a login to a server that the rank runs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.in_time import TooLate, within

from ...processes import kill, proc

logger = logging.getLogger("holdfast.launcher")
PR_SET_CHILD_SUBREAPER = 36
GRACE = 0.5  # seconds between SIGTERM and SIGKILL for what a dead rank left behind
LIMIT = 10.0
UNREADABLE = 5.0  # seconds more, after which reading /proc counts as blocked
LOG_AFTER = 1.0  # seconds in which helpers of a Python process that has ended end as well

# Pid -> start time of what ran below this process before it was a launcher, because a shell started something in
# the background and then became the launcher by exec. That belongs to no rank. One process is one launcher.
_strangers: dict[int, int] = {}
# Pid and start time of torch's managers that sweeps have left alone, and since when (monotonic seconds).
_managers: dict[tuple[int, int], float] = {}


def adopt() -> None:
    """From now on orphans below this process become its children, not init's; existing ones are strangers."""
    with suppress(TooLate, OSError):  # /proc cannot be read: then there are none
        _strangers.update(within(UNREADABLE, lambda: kill.below({os.getpid()}, set())))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(own: set[int]) -> None:
    """Collect adopted children that have ended; `own` pids are left to those who wait for them."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        if ended.si_pid in own:
            break
        os.waitpid(ended.si_pid, os.WNOHANG)
    for pid in _children() - own:  # the one that was found hides the others
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    """This process's children, without reading /proc of any, which could block."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found.update(map(int, file.read().split()))
    return found


def left(spared: set[int]) -> dict[int, int]:
    """Pid -> start time of everything that runs below this process, except `spared` and strangers."""
    spared = spared - {0}  # no process: below pid 0 is the whole machine
    reap(spared)
    strangers = {pid for pid, started in _strangers.items() if proc.start_time(pid) == started}
    return kill.below({os.getpid()}, spared | strangers)


def end_all(spared: set[int]) -> tuple[set[int], set[int]]:
    """End everything below this process except `spared` and strangers; returns (signalled pids, those still there)."""
    return kill.end_all(lambda: left(spared), GRACE, LIMIT)


def end_managers() -> None:
    """Wait for torch's managers that sweeps have left alone; end those that take too long."""

    def find() -> dict[int, int]:
        return {pid: started for pid, started in _managers if proc.is_running(pid, started)}

    kill.end_all(find, GRACE, LIMIT)
    _managers.clear()


def _end_late_managers() -> None:
    for (pid, started), since in list(_managers.items()):
        if time.monotonic() - since > kill.HELPERS:
            kill.send_verified(pid, started, signal.SIGKILL)
            del _managers[pid, started]


class Sweep:
    """Ends what the ranks left behind, in a thread: reading /proc may block, and processes take their time to end.

    torch's managers are left alone, unless an earlier sweep has left them.

    Args:
        spared: The launcher's own children; no others may be started meanwhile.
        done: Called with this object, from the thread, when it is done.
        linger: Seconds in which the processes may end by themselves, such as an upload.
    """

    def __init__(
        self, spared: Callable[[], set[int]], done: Callable[[Sweep], object], linger: float = 0.0
    ) -> None:
        self.ended: set[int] = set()
        """Pids that were signalled."""
        self.left: set[int] = set()
        """Pids that run all the same."""
        self._spared, self._done, self._linger = spared, done, linger
        self._managers: dict[int, int] = {}
        self._hurry = threading.Event()
        self._until = time.monotonic() + linger + LIMIT + UNREADABLE
        self._thread = threading.Thread(target=self._run, name="holdfast-sweep", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started
            self._run()

    @property
    def is_late(self) -> bool:
        """Whether it should have been done by now."""
        return time.monotonic() > self._until

    def end_now(self) -> None:
        """End them now."""
        self._hurry.set()

    def wait(self) -> None:
        """Wait until it is done, or late."""
        self.end_now()
        if self._thread.ident is not None:
            self._thread.join(LIMIT + UNREADABLE)

    def _run(self) -> None:
        try:
            _end_late_managers()
            if self._linger:
                self._wait_for_them()
            self.ended, self.left = kill.end_all(self._find, GRACE, LIMIT)
            for manager in self._managers.items():
                _managers.setdefault(manager, time.monotonic())
        except Exception as error:  # a defect: the ranks themselves have ended
            logger.error("the processes that the ranks left behind could not be ended: %r", error)
        self._done(self)

    def _find(self) -> dict[int, int]:
        found = left(self._spared())
        self._managers = {pid: found.pop(pid) for pid in kill.managers(found)}
        return found

    def _wait_for_them(self) -> None:
        began, has_logged, pause = time.monotonic(), False, 0.01
        while found := self._find():
            waited = time.monotonic() - began
            if waited >= self._linger or self._hurry.wait(pause):
                return
            pause = min(0.2, 1.5 * pause)
            if waited > LOG_AFTER and not has_logged:
                has_logged = True
                logger.warning(
                    "the ranks are done, but %d process%s that they started still run%s (pid %s): "
                    "waiting for at most %g s",
                    len(found),
                    "es" if len(found) > 1 else "",
                    "" if len(found) > 1 else "s",
                    ", ".join(map(str, sorted(found)[:8])),
                    self._linger,
                )
