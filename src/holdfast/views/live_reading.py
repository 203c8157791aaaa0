"""What `holdfast top` reads of a job: the boards of this node's ranks, and the journal of all nodes.

Boards are read at each frame. The journal of a large job takes seconds, so it is read in a thread, and for at most
`SHARE` of the time; what was read before is shown meanwhile. The job is searched for again when its boards are gone: a
new cycle, a new launcher in the run directory, or its end. Nothing is written, signalled or locked.
Does not cover: boards of other users, and of other nodes (their `progress` events are shown).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..fault_tolerance.errors import HoldfastError
from ..fault_tolerance.processes import proc
from ..in_time import TooLate, UnderWay
from ..incidents.capture.rank_probe import LocalRank
from ..incidents.diagnose.find_job import Job, find_job
from ..journal.goodput import NOTHING
from .job import read_job
from .live_frame import RankState, View, rank_state

SHARE = 0.05
"""Of the time, at most, is spent on reading the journal, and on the search for a job."""
AGAIN = 2.0
"""Seconds between two readings, at least."""


class Throttled:
    """A call that is repeated in a thread, within `SHARE` of the time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._under_way: UnderWay[None] | None = None
        self._begun = self._next = 0.0

    def poll(self, seconds: float) -> None:
        """Begin the call if it is due; wait for it for so long."""
        now = time.monotonic()
        if self._under_way is None and now >= self._next:
            self._begun, self._under_way = now, UnderWay(self._call)
        if self._under_way is None:
            return
        try:
            self._under_way.answer(seconds)
        except TooLate:
            return
        self._under_way, now = None, time.monotonic()
        self._next = now + max(AGAIN, (now - self._begun) / SHARE)


class LiveJob:
    """A job that is watched: by a process's number, or by its run directory."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self.run_dir = "" if asked.isdecimal() else asked
        self.job: Job | None = None
        self.problem = ""
        """Why no rank is found."""
        self._job_now = NOTHING
        self._unread = ""
        self._finding, self._reading = Throttled(self._find), Throttled(self._read)

    def view(self, seconds: float) -> View:
        """What there is now; waits for at most so long for each of its parts."""
        if self.job is not None and not any(map(_is_there, self.job.ranks)):
            self.job.close()
            self.job = None
        if self.job is None:
            self._finding.poll(seconds)
        if self.run_dir:
            self._reading.poll(seconds)
        notes = [*self.job.notes] if self.job else [self.problem]
        return View(
            title=self.job.title if self.job else self.run_dir or f"process {self._asked}",
            at=time.time(),
            node=self.job.place.node if self.job else "",
            ranks=[_state(rank) for rank in self.job.ranks] if self.job else [],
            notes=[note for note in (self._unread, *notes) if note],
            journal=self._job_now,
        )

    def _find(self) -> None:
        try:
            # A process that is gone may have a successor in its run directory.
            gone = self._asked.isdecimal() and self.run_dir and not os.path.exists(f"/proc/{self._asked}")
            job = find_job(self.run_dir if gone else self._asked)
        except (HoldfastError, OSError) as error:  # also of files that are just removed
            self.problem = str(error)
            return
        if not any(rank.board for rank in job.ranks):
            job.close()
            self.problem = f"{job.title}: no rank has a board. Name a job of ft_launcher"
            return
        self.problem, self.run_dir = "", job.run_dir or self.run_dir
        self.job = job

    def _read(self) -> None:
        try:
            self._job_now = read_job(self.run_dir, time.time())
            self._unread = ""
        except (HoldfastError, OSError) as error:  # also of files that are just removed
            self._unread = str(error)


def _is_there(rank: LocalRank) -> bool:
    return rank.board is not None and os.path.exists(rank.board.path)


def _state(rank: LocalRank) -> RankState:
    if rank.board is None:
        return RankState(rank.rank, "unknown")
    is_running = proc.is_running(rank.pid, rank.start_time)
    return rank_state(rank.rank, rank.board.snapshot(), rank.board.events(), time.monotonic_ns(), is_running)
