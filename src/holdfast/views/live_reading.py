"""What `holdfast top` reads of a job: the boards of this node's ranks, and the journal of all nodes.

Boards are read at each frame. The journal of a large job takes seconds, so it is read in a thread, and for at most
`SHARE` of the time; what was read before is shown meanwhile. The job is looked for again when its boards are gone: a
new cycle, a new launcher in the run directory, or its end. Nothing is written, signalled or locked.
Does not cover: boards of other users, and of other nodes (their `progress` events are shown).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from ..fault_tolerance.errors import HoldfastError
from ..fault_tolerance.processes import proc
from ..in_time import TooLate, UnderWay
from ..incidents.capture.rank_probe import LocalRank
from ..incidents.diagnose.find_job import Job, find_job
from ..journal.event import Event
from ..journal.goodput import KINDS, goodput
from ..journal.incidents import KINDS as OF_INCIDENTS
from ..journal.incidents import incidents
from ..journal.reader import stream_run
from .live_frame import JournalFacts, NodeState, RankState, View, rank_state

SHARE = 0.05
"""Of the time, at most, is spent on reading the journal, and on looking for a job."""
AGAIN = 2.0
"""Seconds between two readings, at least."""
INCIDENTS = 5


class Paced:
    """A call in a thread, again and again, within `SHARE` of the time. `answer` is its last one."""

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
        self._facts: JournalFacts | None = None
        self._unread = ""
        self._finding, self._reading = Paced(self._find), Paced(self._read)

    def view(self, seconds: float) -> View:
        """What there is now; waits for at most so long for each of its parts."""
        if self.job is not None and not any(map(_is_there, self.job.ranks)):
            self.job.close()
            self.job = None
        if self.job is None:
            self._finding.poll(seconds)
        if self.run_dir:
            self._reading.poll(seconds)
        job, notes = self.job, [self._unread] if self._unread else []
        ranks = tuple(_states(job)) if job else ()
        title = job.title if job else self.run_dir or f"process {self._asked}"
        notes += [*job.notes] if job else [self.problem] if self.problem else []
        return View(title, time.time(), job.place.node if job else "", ranks, self._facts, tuple(notes))

    def _find(self) -> None:
        try:
            # A process that is gone may have a successor in its run directory.
            gone = self._asked.isdecimal() and self.run_dir and not os.path.exists(f"/proc/{self._asked}")
            job = find_job(self.run_dir if gone else self._asked)
        except HoldfastError as error:
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
            self._facts = read_facts(self.run_dir, time.time(), runs_here=self.job is not None)
            self._unread = ""
        except HoldfastError as error:
            self._unread = str(error)


def _is_there(rank: LocalRank) -> bool:
    return rank.board is not None and os.path.exists(rank.board.path)


def _states(job: Job) -> Iterator[RankState]:
    for rank in job.ranks:
        if rank.board is None:
            yield RankState(rank.rank, "unknown")
            continue
        is_running = proc.is_running(rank.pid, rank.start_time)
        board, events = rank.board.snapshot(), rank.board.events()
        yield rank_state(rank.rank, board, events, time.monotonic_ns(), is_running)


def read_facts(run_dir: str, now: float, *, runs_here: bool) -> JournalFacts | None:
    """What the journal has at `now` (unix seconds); None before its first event. Raises `JournalUnreadable`."""
    found = incidents(stream_run(run_dir, OF_INCIDENTS))
    newest: dict[str, Event] = {}
    ends: dict[str, object] = {}

    def kept(events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if event.kind == "cycle_start":
                newest.pop(event.source, None)
            elif event.kind == "progress":
                newest[event.source] = event
            elif event.kind == "run_start":
                ends[event.source] = None
            elif event.kind == "run_end":
                ends[event.source] = event.get("exit_code")
            yield event

    ledger = goodput(kept(stream_run(run_dir, KINDS)), found, now if runs_here else 0.0)
    if not ledger.attempts:
        return None
    codes = sorted({str(code) for code in ends.values()})
    has_ended = bool(ends) and None not in ends.values()
    return JournalFacts(
        share=ledger.share,
        wall=ledger.wall,
        cycles=ledger.cycles,
        failures=ledger.failures,
        incidents=tuple(found[-INCIDENTS:]),
        nodes=() if has_ended else tuple(_node(newest[source], now) for source in sorted(newest)),
        end=f"the job ended with exit code {' and '.join(codes)}" if has_ended else "",
    )


def _node(event: Event, now: float) -> NodeState:
    ranks, step, rate = event.get("ranks"), event.get("steps_most"), event.get("step_rate")
    return NodeState(
        node=event.source,
        ranks=ranks if type(ranks) is int else 0,
        step=step if type(step) is int else None,
        rate=float(rate) if type(rate) in (int, float) else None,
        age=now - event.t,
    )
