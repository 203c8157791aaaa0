"""One rank of this node: which of its processes matters, its board as facts, and its evidence part by part.

The registered process may be a shell, a profiler or another program that waits for the Python that trains. The process
that matters is the one that has armed itself (it wrote `<prefix>.armed`), else the nearest Python below a program
that is none, else the registered one.

Samples wait for nothing and are taken by the caller. What may wait (the system call, files, command lines of children)
and asking the rank itself are for threads; each part is published when it is complete.
Does not cover: time; `capture` starts the threads and leaves them behind. Programs that embed Python and have not
armed themselves.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ...fault_tolerance.board import BoardReader
from ...fault_tolerance.board.values import BoardEvent, Snapshot
from ...fault_tolerance.processes import proc
from ...health import programs
from .. import wire
from ..evidence import (
    BoardFacts,
    Frame,
    Missing,
    OpenSection,
    Process,
    RankEvidence,
    RingEvent,
    StackSource,
    SystemCall,
)
from . import procfs, py_spy
from .stack_request import StackReply, read_armed, request, worker_stacks
from .waiting_on import kernel_stack, system_call

SPIES = 2
"""How many py-spy run at once on a node."""
MOST_WORKERS = 4
"""Children of a rank whose stacks are taken."""
_FOR_THE_RANK = 0.6
"""Share of the time in which the rank itself may answer, where py-spy could read it afterwards."""
_READS = re.compile(
    r"pipe|fifo|folio|filemap|nfs|fuse|io_schedule|request_wait_answer|netfs|ceph|lustre|gpfs|cifs"
)
"""Functions of the kernel in which a process sleeps while it reads."""
_BEFORE_ASKED = 0.8
"""Share of the pause in which reads are counted."""
_PYTHON = ("python", "pypy")
"""How the names of interpreters' files begin."""
RankId = tuple[int, int, int, int]
"""Of a rank: its number, its local number, its pid, and the process's start time."""


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One local rank."""

    rank: int
    local_rank: int
    pid: int
    start_time: int
    """Clock ticks since boot (proc(5)); 0 takes any process with this pid."""
    node: str
    board: BoardReader | None
    prefix: str
    """Of the files next to its board, `<boards>/cycle-<C>/<L>`; empty where it has none."""


@contextmanager
def opened(folder: str, node: str, ranks: Iterable[RankId]) -> Iterator[list[LocalRank]]:
    """These ranks, each with its own reader of its board, which is closed in the end.

    `folder` has the boards of the cycle. A board that cannot be read is evidence too: its rank has none.
    """
    local: list[LocalRank] = []
    try:
        for rank, local_rank, pid, start_time in ranks:
            prefix = os.path.join(folder, str(local_rank))
            board = None
            with suppress(Exception):
                board = BoardReader(f"{prefix}.board")
            local.append(LocalRank(rank, local_rank, pid, start_time, node, board, prefix))
        yield local
    finally:
        for each in local:
            if each.board is not None:
                each.board.close()


def target_process(who: LocalRank) -> proc.Stat | None:
    """The process below the registered one that matters; None: the registered one does. Waits for nothing."""
    first = proc.stat(who.pid)
    if first is None or (who.start_time and first.start_time != who.start_time):
        return None
    armed = read_armed(who.prefix) if who.prefix else None
    is_python = _is_python(who.pid)
    if armed.pid == who.pid if armed else is_python:
        return None
    below = [found for pid in procfs.below(who.pid) if (found := proc.stat(pid)) and found.is_running]
    fits = [each for each in below if armed and each.pid == armed.pid]
    if not fits and not is_python:
        fits = [each for each in below if _is_python(each.pid)]
    return fits[0] if fits else None


def _is_python(pid: int) -> bool:
    """By its file: a script may have given the process its own name."""
    return os.path.basename(procfs.link(f"/proc/{pid}/exe")).startswith(_PYTHON)


class RankProbe:
    """The parts of one rank's evidence that are complete by now."""

    def __init__(self, who: LocalRank) -> None:
        self.who = who
        self.notes: list[str] = []
        self.reply = StackReply()
        self.pid, self.start_time = who.pid, who.start_time
        """Of the process that matters."""
        self._before = self._snapshot()
        self._now_ns = time.monotonic_ns()
        self._first: procfs.Sample | None = None
        self._last: procfs.Sample | None = None
        self._commands: dict[int, str] = {}
        self._worker_frames: dict[int, tuple[Frame, ...]] = {}
        self._system_call = SystemCall()
        self._kernel_stack: tuple[str, ...] = ()
        self._network_files: tuple[str, ...] = ()
        self._read = 0, 0.0
        """Bytes, and the seconds in which they were read."""

    @property
    def is_alive(self) -> bool:
        """Whether the process was alive; one that only waits to be reaped was not."""
        first = self._first
        return first is not None and (first.stat.state not in "ZX" or first.stat.threads > 1)

    @property
    def waits_for_bytes(self) -> bool:
        """Whether its main thread waited in a read when it was first sampled, as far as the kernel shows that."""
        return self._first is not None and bool(_READS.search(self._first.wait_channel))

    # -- what waits for nothing -----------------------------------------------------------------------------------

    def first_sample(self) -> None:
        """Which process matters, and its state."""
        if found := target_process(self.who):
            self.pid, self.start_time = found.pid, found.start_time
            first = proc.stat(self.who.pid)
            name = first.name if first else "gone"
            below = f"the evidence is of pid {found.pid} ({found.name}) below it"
            self.notes.append(f"Its process {self.who.pid} is {name}; {below}.")
        self._first = procfs.sample(self.pid, self.start_time)
        if self._first is not None:
            self.start_time = self._first.stat.start_time

    def add_threads(self, until: float, *, counters: bool) -> None:
        """Its threads and children, as far as time is enough (monotonic seconds)."""
        if self._first is not None:
            self._first.add(until, counters=counters)

    def second_sample(self, until: float) -> None:
        """Its state now, and what has moved since."""
        first = self._first
        last = procfs.sample(self.pid, self.start_time)
        if last is None:
            self._first = None
            self.notes.append(f"Its process {self.pid} ended during the capture.")
        elif first is not None:
            last.add(until, children=tuple(first.children))
            self._last = last if last.complete or not first.complete else None

    # -- what may wait: for threads -------------------------------------------------------------------------------

    def probe_closer(self, until: float, pause: float, others: Sequence[int] = ()) -> None:
        """What it waits in, its files, its children's command lines, and what it reads within `pause`.

        Nothing is begun after `until`. `others` are the processes of the node's other ranks.
        """
        pid, channel = self.pid, self._first.wait_channel if self._first else ""
        before, began = procfs.bytes_read(pid), time.monotonic()
        self._system_call = system_call(pid, channel, self._children, others)
        if time.monotonic() < until:
            self._kernel_stack = kernel_stack(pid)
        if time.monotonic() < until:
            self._network_files = procfs.network_files(pid)
        for child in self._children():
            if time.monotonic() < until:
                self._commands[child] = procfs.command(child)
        # Done before the rank is asked for its stacks: what it reads for that is no sign of life.
        left = began + _BEFORE_ASKED * pause - time.monotonic()
        if before and left > 0 and time.monotonic() + left < until:
            time.sleep(left)
            if now := procfs.bytes_read(pid):
                seconds = round(time.monotonic() - began, 4)
                self._read = max(now[0] - before[0], now[1] - before[1]), seconds

    def _children(self) -> tuple[int, ...]:
        return tuple(self._first.children) if self._first else ()

    def ask(self, until: float, spies: threading.Semaphore) -> None:
        """Have it report its stacks, by py-spy where it does not, then its workers' stacks, by `until`."""
        spied = bool(programs.find("py-spy"))
        now = time.monotonic()
        ends = now + (until - now) * _FOR_THE_RANK if spied else until
        self.reply = request(self.who.prefix, self.pid, self.start_time, ends)
        if self.reply.stacks_from is not StackSource.RANK and spies.acquire(
            timeout=max(until - time.monotonic(), 0.0)
        ):
            try:
                self._spy(until)
            finally:
                spies.release()
        if self.who.prefix and (workers := self._workers()):
            self._worker_frames = worker_stacks(self.who.prefix, self.pid, workers, until)

    def _spy(self, until: float) -> None:
        stacks, why_not = py_spy.stacks(self.pid, until)
        if stacks:
            self.reply = replace(
                self.reply, stacks=stacks, stacks_from=StackSource.PY_SPY, no_stacks=Missing.NOTHING
            )
        elif not self.reply.stacks:
            self.reply = replace(self.reply, notes=(*self.reply.notes, f"No stack by py-spy: {why_not}."))

    def _workers(self) -> list[tuple[int, int]]:
        """Pids and start times of children that may be data-loader workers and wait: the odd ones out first.

        A child between fork and exec shares its memory with a rank in state D, so none is asked then.
        """
        sample = self._last or self._first
        if sample is None or any(each.stat and each.stat.state == "D" for each in sample.threads.values()):
            return []
        first = self._first.children if self._first else {}
        own = [
            (each.stat, each.wait_channel, each.seconds > first.get(pid, each).seconds)
            for pid, each in sample.children.items()
            if each.stat and each.stat.ppid == self.pid and each.stat.state in "RS"
        ]
        alike = Counter(channel for _, channel, _ in own)
        own.sort(key=lambda each: (each[2], alike[each[1]], each[0].pid))
        return [(stat.pid, stat.start_time) for stat, _, _ in own[:MOST_WORKERS]]

    # -- as evidence ----------------------------------------------------------------------------------------------

    def evidence(self, *, asked: bool) -> RankEvidence:
        """All that is complete by now."""
        who, reply = self.who, self.reply  # once: a thread that is late may replace it
        notes = [*self.notes, *reply.notes]
        process = board = None
        try:
            process = self._process()
        except Exception as error:
            notes.append(f"Its process cannot be described: {error!r} (please report this).")
        try:
            board = self._board()
        except Exception as error:
            notes.append(f"Its board cannot be read: {error!r}.")
        why = Missing.TOO_LATE if asked else Missing.NOT_REQUESTED
        why = why if self.is_alive else Missing.ENDED
        return RankEvidence(
            rank=who.rank,
            local_rank=who.local_rank,
            pid=who.pid,
            node=who.node,
            board=board,
            process=process,
            stacks=reply.stacks,
            stacks_from=reply.stacks_from,
            no_stacks=Missing.NOTHING if reply.stacks else reply.no_stacks or why,
            collectives=reply.collectives,
            peer=reply.peer,
            no_collectives=reply.no_collectives or (Missing.NOTHING if reply.collectives else why),
            notes=tuple(notes),
        )

    def _process(self) -> Process:
        found = procfs.process(self._first, self._last, dict(self._commands))
        frames = self._worker_frames
        return replace(
            found,
            system_call=self._system_call,
            kernel_stack=self._kernel_stack,
            network_files=self._network_files,
            read=self._read[0],
            read_over=self._read[1],
            children=tuple(replace(each, frames=frames.get(each.pid, ())) for each in found.children),
        )

    def _snapshot(self) -> Snapshot | None:
        try:
            return self.who.board.snapshot() if self.who.board is not None else None
        except Exception:  # closed meanwhile, or scribbled over
            return None

    def _board(self) -> BoardFacts | None:
        now = self._snapshot()
        if self.who.board is None or now is None:
            return None
        return board_facts(now, self.who.board.events(), self._now_ns, self._before)


# -- a board as facts ------------------------------------------------------------------------------------------

SECOND = 1_000_000_000
RECENT = 60.0
"""Seconds before the capture whose events are evidence."""


def board_facts(
    board: Snapshot, events: Iterable[BoardEvent], now_ns: int, before: Snapshot | None = None
) -> BoardFacts:
    """Facts that count back from `now_ns` (monotonic). `before` is an earlier snapshot, to see what moves. Pure.

    No duration is negative, whatever a rank has scribbled over its own page.
    """
    started = board.identity.started_ns if board.identity else 0
    since = now_ns - int(RECENT * SECOND)
    recent = tuple(
        RingEvent(each.kind, _ago(each.at_ns, now_ns), each.name, each.value)
        for each in events
        if each.at_ns >= since
    )
    return BoardFacts(
        connected=board.connected,
        finished=board.finished or (board.main_ended_ns > 0 and not board.main_raised),
        heartbeats=board.heartbeat_count,
        step=board.step,
        counted=board.counted,
        checkpoints=board.checkpoints,
        sections=tuple(OpenSection(each.name, _ago(each.since_ns, now_ns)) for each in board.open_sections),
        silent=_ago(max(board.last_activity_ns, started), now_ns),
        age=_ago(started, now_ns),
        moved=before is not None and _signs(board) != _signs(before),
        events=recent,
        rhythm=wire.rhythm([each.ago for each in recent]),
    )


def _ago(moment_ns: int, now_ns: int) -> float:
    """Seconds; 0 for a moment that is unknown, and for one that came during the capture."""
    return round(max(now_ns - moment_ns, 0) / SECOND, 6) if moment_ns > 0 else 0.0


def _signs(board: Snapshot) -> tuple[object, ...]:
    counts = board.heartbeat_count, board.step, board.section_count, board.checkpoints
    return board.connected, board.finished, *counts, board.open_sections, board.last_activity_ns
