"""The processes of one cycle's ranks on this node: how each ended, and signals to them.

Exits are found by pidfds, not by polling. A rank is signalled alone, not with its process group: data-loader workers
must not die before the rank has saved (the sweep ends them afterwards).
Does not cover: a process that even SIGKILL cannot end (:mod:`.process_states`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from subprocess import Popen

from ...processes import pidfd
from ..inbox import Inbox
from .exits import RankExit

DEBUGGED = 0.02
"""Seconds to pause where a debugger keeps what is left of a process, whose pidfd stays readable."""


class RankGroup:
    """Started ranks by local rank; `ranks` maps local rank to global rank. Exits arrive in the inbox as `RankExit`."""

    def __init__(self, processes: Mapping[int, Popen[bytes]], ranks: Mapping[int, int], inbox: Inbox) -> None:
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
                inbox.watch(handle, self._reaper(local_rank))
        except OSError:
            self.close()
            raise

    def _reaper(self, local_rank: int) -> Callable[[], RankExit | None]:
        def reap() -> RankExit | None:
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

        return reap

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
            if pidfd.send(handle, number):
                reached[local_rank] = self._processes[local_rank].pid
        return reached

    def kill(self, local_rank: int, patience: float) -> None:
        """SIGKILL one rank, which has been waited for so many seconds."""
        handle = self._handles.get(local_rank)
        if handle is not None:
            self.killed[local_rank] = patience
            pidfd.send(handle, signal.SIGKILL)

    def close(self) -> None:
        """Forget the processes (those that still run are left to the sweep)."""
        for handle in self._handles.values():
            self._inbox.ignore(handle)
            os.close(handle)
        self._handles.clear()
