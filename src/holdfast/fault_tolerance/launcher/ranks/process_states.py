"""What the kernel reports of the ranks' processes: CPU time, and which of the killed ones cannot end.

Reading /proc of a process can block for as long as its filesystem does not answer, so that is done by a thread which
can be left behind. A killed process of which nothing can be read counts as blocked.
Does not cover: the ranks' children.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from holdfast.in_time import TooLate, UnderWay

from ...processes import proc

EVERY = 1.0
"""Seconds between two reads; of killed ranks a tenth of that."""
UNREADABLE = 1.0
"""Seconds after which reading /proc counts as blocked."""


class ProcessStates:
    """The newest states of the ranks that run, read at most once at a time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.cpu = 1.0
        """CPU seconds per second that all ranks used lately."""
        self.blocked: frozenset[int] = frozenset()
        """Local ranks that were sent SIGKILL and are in an uninterruptible wait (state D)."""
        self._under_way: UnderWay[tuple[float, frozenset[int]]] | None = None
        self._began = 0.0
        self._last: tuple[float, float] | None = None  # when, and the CPU seconds until then

    def refresh(self, running: Mapping[int, int], killed: Iterable[int], now: float) -> None:
        """Take over what was read, and begin to read anew; `running` maps local rank to pid."""
        doomed = {local: running[local] for local in killed if local in running}
        if self._under_way is not None:
            try:
                used, self.blocked = self._under_way.answer(0.0)
            except TooLate:
                if now - self._began > UNREADABLE:
                    self.blocked = frozenset(doomed)
                return
            if self._last is not None and self._began > self._last[0]:
                self.cpu = max(0.0, used - self._last[1]) / (self._began - self._last[0])
            self._last, self._under_way = (self._began, used), None
        if now - self._began < (EVERY / 10 if doomed else EVERY):
            return
        pids = list(running.values())
        try:
            self._under_way, self._began = UnderWay(lambda: _read(pids, doomed)), now
        except RuntimeError:  # no thread can be started: the last states stay
            return


def _read(pids: Iterable[int], doomed: Mapping[int, int]) -> tuple[float, frozenset[int]]:
    stats = [proc.stat(pid) for pid in pids]
    used = sum(found.cpu_ticks for found in stats if found) / proc.TICKS_PER_SECOND
    return used, frozenset(local for local, pid in doomed.items() if uninterruptible(pid))


def uninterruptible(pid: int) -> bool:
    """Whether a thread of the process is in state D."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(found.state == "D" for thread in threads if (found := proc.stat(int(thread))))


def describe_blocked(pids: Iterable[int]) -> str:
    """`pid 7 (state D, waits in kernel function nfs_wait)` for processes that outlived SIGKILL."""
    parts = []
    for pid in pids:
        found = proc.stat(pid)
        channel = proc.wait_channel(pid)
        where = f", waits in kernel function {channel}" if channel else ""
        parts.append(f"pid {pid} (state {found.state if found else 'gone'}{where})")
    return ", ".join(parts)
