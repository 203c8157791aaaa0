"""The processes of one cycle's ranks on this node: their exits, signals to them, and what the kernel reports of them.

Exits are found by pidfds, not by polling. A rank is signalled alone, not with its process group: data-loader workers
must not die before the rank has saved (the sweep ends them afterwards).
Reading /proc of a process can block for as long as its filesystem does not answer, so a thread does that, which can be
abandoned. A killed process of which nothing can be read counts as blocked.
Does not cover: the ranks' children.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from functools import partial

from holdfast.in_time import TooLate, UnderWay, within

from ...processes import kill, proc
from ..exit_codes import RankExit
from ..inbox import Inbox
from ..warm.forked import Process

DEBUGGED = 0.02
"""Seconds to pause where a debugger keeps what is left of a process, whose pidfd stays readable."""
EVERY = 1.0
"""Seconds between two reads of /proc; of killed ranks a tenth of that."""
UNREADABLE = 1.0
"""Seconds after which reading /proc counts as blocked."""
DESCRIBE = 0.5
"""Seconds for a description of processes that cannot be ended."""


class RankGroup:
    """Started ranks by local rank; `ranks` maps local rank to global rank. Exits arrive in the inbox as `RankExit`."""

    def __init__(self, processes: Mapping[int, Process], ranks: Mapping[int, int], inbox: Inbox) -> None:
        self._processes = dict(processes)
        self._ranks = dict(ranks)
        self._inbox = inbox
        self._handles: dict[int, int] = {}
        self.exits: dict[int, RankExit] = {}
        self.killed: dict[int, float] = {}  # local ranks that were sent SIGKILL, after how many seconds
        try:
            for local_rank, process in self._processes.items():
                # The process is our unreaped child, so its pid cannot have been recycled yet.
                handle = os.pidfd_open(process.pid)
                self._handles[local_rank] = handle
                inbox.watch(handle, partial(self._reap, local_rank))
        except OSError:
            self.close()
            raise

    def _reap(self, local_rank: int) -> RankExit | None:
        status = self._processes[local_rank].poll()
        if status is None:
            time.sleep(DEBUGGED)
            return None
        patience = self.killed.get(local_rank) if status == -signal.SIGKILL else None
        pid, now = self._processes[local_rank].pid, time.monotonic()
        found = RankExit(self._ranks[local_rank], local_rank, pid, status, now, patience)
        self.exits[local_rank] = found
        handle = self._handles.pop(local_rank)
        self._inbox.ignore(handle)
        os.close(handle)
        return found

    @property
    def local_ranks(self) -> list[int]:
        """All of them, also those that have ended."""
        return sorted(self._processes)

    def rank_of(self, local_rank: int) -> int:
        """The global rank."""
        return self._ranks[local_rank]

    def pid_of(self, local_rank: int) -> int:
        """Of its process, also when that has ended."""
        return self._processes[local_rank].pid

    @property
    def running(self) -> dict[int, int]:
        """Local rank -> pid of those that have not ended."""
        return {local_rank: self._processes[local_rank].pid for local_rank in self._handles}

    def signal(self, number: int) -> dict[int, int]:
        """Signal every running rank; returns local rank -> pid of those that got it."""
        reached = {}
        for local_rank, handle in self._handles.items():
            if kill.send(handle, number):
                reached[local_rank] = self._processes[local_rank].pid
        return reached

    def kill(self, local_rank: int, patience: float, number: int) -> None:
        """Signal one rank, after waiting `patience` seconds for it."""
        handle = self._handles.get(local_rank)
        if handle is not None:
            if number == signal.SIGKILL:
                self.killed[local_rank] = patience
            kill.send(handle, number)

    def close(self) -> None:
        """Forget the processes (those that still run are left to the sweep)."""
        for handle in self._handles.values():
            self._inbox.ignore(handle)
            os.close(handle)
        self._handles.clear()


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
    ordered = sorted(pids)
    try:
        return within(DESCRIBE, lambda: ", ".join(map(_described, ordered)))
    except TooLate:
        return ", ".join(f"pid {pid}" for pid in ordered)


def _described(pid: int) -> str:
    found, channel = proc.stat(pid), proc.wait_channel(pid)
    where = f", waits in kernel function {channel}" if channel else ""
    return f"pid {pid} (state {found.state if found else 'gone'}{where})"
