"""The ranks of one cycle on this node: their processes, how each ended, and how they are stopped.

Exits are noticed through pidfds, not by polling. A rank is signalled alone, not with its process group: loader
workers must not die before the rank has saved (the sweep ends them afterwards).
Does not cover: a process that even SIGKILL cannot end (:mod:`.dying`); :meth:`RankGroup.stop` reports it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from subprocess import Popen

from ...monitor.gaps import SECOND, overslept
from ...processes import pidfd, proc
from ..inbox import Inbox
from .dying import Dying
from .exits import RankExit

LONGEST_WAIT = 1.0
HELD = 0.02  # seconds


class RankGroup:
    """Started ranks by local rank. `ranks` maps local rank to global rank."""

    def __init__(self, processes: Mapping[int, Popen[bytes]], ranks: Mapping[int, int], inbox: Inbox) -> None:
        self._processes = dict(processes)
        self._ranks = dict(ranks)
        self._inbox = inbox
        self._handles: dict[int, int] = {}
        self.exits: dict[int, RankExit] = {}
        self._told: set[int] = set()  # local ranks whose exit :meth:`fresh_exits` has returned
        self.killed: dict[int, float] = {}  # local ranks that had to be SIGKILLed, after how many seconds
        for local_rank, process in self._processes.items():
            # The process is our unreaped child, so its pid cannot have been recycled yet.
            handle = os.pidfd_open(process.pid)
            self._handles[local_rank] = handle
            inbox.watch(handle, self._reaper(local_rank))

    def _reaper(self, local_rank: int) -> Callable[[], RankExit | None]:
        def reap() -> RankExit | None:
            found = self._reap(local_rank)
            if found is None:  # a debugger has it and keeps what is left of it: do not spin on its descriptor
                time.sleep(HELD)
            return found

        return reap

    def _reap(self, local_rank: int) -> RankExit | None:
        status = self._processes[local_rank].poll()
        if status is None or local_rank in self.exits:
            return None
        pid = self._processes[local_rank].pid
        patience = self.killed.get(local_rank) if status == -signal.SIGKILL else None
        rank, now = self._ranks[local_rank], time.monotonic()
        self.exits[local_rank] = RankExit(rank, local_rank, pid, status, now, patience)
        handle = self._handles.pop(local_rank)
        self._inbox.ignore(handle)
        os.close(handle)
        return self.exits[local_rank]

    def fresh_exits(self) -> list[RankExit]:
        """Every exit until now that was not returned before, each once, whoever asks."""
        for local_rank in list(self._handles):
            self._reap(local_rank)
        fresh = [found for local_rank, found in self.exits.items() if local_rank not in self._told]
        self._told.update(found.local_rank for found in fresh)
        return fresh

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

    @property
    def pids(self) -> set[int]:
        """Pids of all ranks that have not been reaped."""
        return set(self.running.values())

    def signal(self, number: int) -> dict[int, int]:
        """Signal every running rank; returns local rank -> pid of those that got it."""
        reached = {}
        for local_rank, handle in self._handles.items():
            if pidfd.send(handle, number):
                reached[local_rank] = self._processes[local_rank].pid
        return reached

    def kill(self, local_rank: int, patience: float) -> None:
        """SIGKILL one rank, which has been waited for so many seconds."""
        handle = self._handles.get(local_rank)
        if handle is not None:
            self.killed[local_rank] = patience
            pidfd.send(handle, signal.SIGKILL)

    def stop(self, grace: Callable[[int], float], hurry: Callable[[list[object]], bool]) -> list[int]:
        """SIGTERM, each rank's own grace in seconds, SIGKILL; returns pids that outlived even that.

        `hurry` sees the events that arrive meanwhile and says whether to stop being patient.
        """
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped rank would sit on the SIGTERM
        return self.wait(lambda local_rank: began + grace(local_rank), hurry, began)

    def wait(
        self, until: Callable[[int], float], hurry: Callable[[list[object]], bool], began: float
    ) -> list[int]:
        """Wait for each rank up to its deadline (monotonic seconds), then SIGKILL it.

        Deadlines are asked for anew at least once a second: a rank may begin or finish saving meanwhile. `began` is
        when their time began: the job may be suspended before this is called, and gets that back as well.
        """
        kept: list[object] = []
        hurried, lent, dying = False, 0.0, Dying()
        looked = planned = began
        while self._handles:
            now = time.monotonic()
            if overslept(
                int(planned * SECOND), int(now * SECOND)
            ):  # suspended, with the ranks: they get it back
                lent += now - looked
                dying.lend(now - looked)
                for local_rank in list(self._handles):
                    self._reap(local_rank)
            deadlines = {rank: until(rank) + lent for rank in self._handles if rank not in self.killed}
            for local_rank, deadline in deadlines.items():
                if deadline <= now or hurried:
                    self.kill(local_rank, now - began - lent)
            doomed = {pid for local_rank, pid in self.running.items() if local_rank in self.killed}
            if dying.look(doomed, now) == self.pids:
                break
            open_ones = [at for local_rank, at in deadlines.items() if local_rank not in self.killed]
            looked, planned = now, min([now + LONGEST_WAIT, *open_ones])
            events = self._inbox.wait(planned - now)
            kept += [event for event in events if not isinstance(event, RankExit)]
            hurried = hurry(events) or hurried
        for event in kept:  # what arrived meanwhile is for whoever looks next
            self._inbox.post(event)
        return sorted(self.pids)

    def close(self) -> None:
        """Forget the processes (those still there are left to the sweep)."""
        for handle in self._handles.values():
            self._inbox.ignore(handle)
            os.close(handle)
        self._handles.clear()


def describe_stuck(pids: list[int]) -> str:
    """`pid 7 (state D, waits in kernel function nfs_wait)` for processes that outlived SIGKILL."""
    parts = []
    for pid in pids:
        found = proc.stat(pid)
        channel = proc.wait_channel(pid)
        where = f", waits in kernel function {channel}" if channel else ""
        parts.append(f"pid {pid} (state {found.state if found else 'gone'}{where})")
    return ", ".join(parts)
