"""Ranks that were sent SIGKILL and have not ended yet: which are merely slow, and which will not end.

To give back a hundred gigabytes takes long, and it ends. A wait in the kernel that SIGKILL cannot end (state D: a hung
disk, a driver, a frozen cgroup) may last for ever; only a process that stays in it is given up.
Times are monotonic seconds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from ...processes import proc

logger = logging.getLogger("holdfast.launcher")
UNINTERRUPTIBLE = 10.0  # seconds in state D, after SIGKILL, after which the node gives up on a process
SLOW = 10.0  # seconds after which somebody who waits is told for whom


class Dying:
    """Processes by pid, as seen at successive looks."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}  # since when it has been looked at
        self._waits: dict[int, float] = {}  # since when each look has found it in state D
        self._said: set[int] = set()

    def look(self, pids: Iterable[int], now: float) -> set[int]:
        """Which of these, all of them killed, are given up."""
        given_up = set()
        for pid in pids:
            seen = self._seen.setdefault(pid, now)
            if not uninterruptible(pid):
                self._waits.pop(pid, None)
                self._say(pid, now - seen)
            elif now - self._waits.setdefault(pid, now) >= UNINTERRUPTIBLE:
                given_up.add(pid)
        return given_up

    def lend(self, seconds: float) -> None:
        """The world stood still for so long: it counts for nobody."""
        for times in (self._seen, self._waits):
            for pid in times:
                times[pid] += seconds

    def _say(self, pid: int, seconds: float) -> None:
        if seconds >= SLOW and pid not in self._said:
            self._said.add(pid)
            logger.warning(
                "pid %d was sent SIGKILL %.0f s ago and is still ending (it gives its memory back, or a debugger holds "
                "it): waiting for it",
                pid,
                seconds,
            )


def uninterruptible(pid: int) -> bool:
    """Whether a thread of the process is in state D."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(found.state == "D" for thread in threads if (found := proc.stat(int(thread))))
