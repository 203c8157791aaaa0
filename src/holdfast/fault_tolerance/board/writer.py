"""The rank's side of a board: heartbeats and section edges, a few hundred nanoseconds each, and all rare changes.

No call blocks or fails because of a reader. Each hot change is a seqlock write: between the odd and the even sequence
number there are no calls and no jumps that are taken, the only points where CPython runs signal handlers (3.10 at
jumps too, later versions at calls and loops only). So no handler or exception can leave a write half done; only the
death of the process can. Rare changes (limits, a new section's name, a request) are made in a copy and stored as one
block, so they are as whole as the hot ones.

The lock is re-entrant, because a signal handler may send a heartbeat in the middle of a heartbeat. No code logs while
it has the lock: a log line may block on a full pipe, and every other thread's heartbeat would block with it.

One process at a time writes a board: the one that the launcher bound it to, the first one that writes, or a successor
after the last writer has ended (a shell script that starts one program after another). Otherwise the heartbeats of a
helper, an evaluation script say, would keep a hung rank alive. A forked child (a data loader's worker) inherits the
writer but not the board: in the child everything goes to private memory.

Does not cover: a tracing profiler or a debugger in the rank, which may run code between any two lines. A fork that
bypasses Python's own (`os.fork`, `multiprocessing`), made by a C library that then runs Python code in the child.
Processes of different pid namespaces.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from operator import index
from time import monotonic_ns
from typing import TypeVar

from holdfast.prefixed_log import log as _log

from ..errors import BoardError
from ..processes import proc
from . import layout as L
from .layout import (
    CHECKPOINT_STEP,
    CHECKPOINTING,
    CLOSED,
    END,
    EVENT_WORDS,
    HEARTBEAT,
    HEARTBEATS,
    KIND_BITS,
    LARGEST,
    LAST_EDGE,
    LAST_HEARTBEAT,
    OUT_SINCE,
    RING,
    RING_MASK,
    SECTIONS_OPENED,
    SEQUENCE,
    SINCE,
    SPENT,
    START,
    STEP,
    STEPPED,
)
from .mapped import MappedFile, detach_in_child, private_words
from .reader import read_identity
from .values import Identity, Limits, Observer, Request

_T = TypeVar("_T")
_STEP_LIMIT = 1 << 62


class BoardWriter:
    """Writes one rank's board; thread-safe. With `path` None it writes private memory that no other process sees.

    A process that opens a board again continues its counts; those of another process before it are forgotten. Counts
    are kept here and only ever written to the page, except the totals of each section: only the page has those.

    Args:
        path: the board's file.
        intervals: is called inside the lock for the first heartbeat, for each gap between two that may be the longest,
            and for every section edge.
        on_new_section: is called at the first opening of a section that was not named before, and that therefore has
            no limit. It may block: it is called without the lock.

    Raises:
        BoardError: `path` is not a board of this version and this user's, or another process writes it.
    """

    def __init__(
        self,
        path: str | None,
        intervals: Observer | None = None,
        on_new_section: Callable[[str], None] | None = None,
    ) -> None:
        self._file: MappedFile | None = None
        self._identity, words = private_words(L.IDENTITY_BYTES), private_words(L.RANK_BYTES)
        if path is not None:
            self._file, self._identity, words = _claim(path)
        observer = intervals or Observer()
        self._observe_heartbeat = observer.heartbeat
        self._observe_inside = observer.in_section
        self._observe_outside = observer.out_of_section
        self._on_new_section = on_new_section
        self._lock = threading.RLock()
        self._words = words
        # A predecessor on this page left its counts, and an odd number if it was killed in the middle of a write.
        self._sequence: int = (words[SEQUENCE] + 1) & ~1
        self._beats: int = words[HEARTBEATS]
        self._opened_ever: int = words[SECTIONS_OPENED]
        self._slots = {name: slot for slot, name in enumerate(L.section_names(self._rare))}
        self._opened: dict[str, int] = {}  # name → since
        self._out_since = 0  # when the last open section closed; 0 while one is open and before the first
        self._last_beat = 0  # 0: none yet
        self._longest_gap = -1  # between two heartbeats, as the observer has it
        self._overflowed = False
        detach_in_child(self)

    def heartbeat(self, step: int | None = None) -> None:
        """The rank is alive and, if given, at this step (an integer of 62 bits: TypeError, ValueError otherwise)."""
        if step is not None:
            step = index(step)
            if not -_STEP_LIMIT < step < _STEP_LIMIT:
                raise ValueError(f"step {step} is out of range")
        with self._lock:
            now = monotonic_ns()
            words = self._words
            self._beats = beats = self._beats + 1
            if step is None:
                kind, value, last_step = HEARTBEAT, 0, words[STEP]
            else:
                kind, value, last_step = STEPPED, step, step + 1
            sequence = self._sequence
            entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
            words[SEQUENCE] = sequence + 1
            words[HEARTBEATS] = beats
            words[LAST_HEARTBEAT] = now
            words[STEP] = last_step
            words[entry] = now
            words[entry + 1] = kind
            words[entry + 2] = value
            words[SEQUENCE] = self._sequence = sequence + 2
            last, self._last_beat = self._last_beat, now
            gap = now - last if last else 0
            if gap > self._longest_gap:
                self._longest_gap = gap
                self._observe_heartbeat(now, gap)

    def start_section(self, name: str) -> bool:
        """Open a section; False if it is open already. Sections may nest and overlap."""
        try:
            slot = self._slots[name]
        except KeyError:
            slot = self._new_slot(name)
            if self._on_new_section is not None:
                self._without_lock(self._on_new_section, name)
        with self._lock:
            now = monotonic_ns()
            opened = self._opened
            if name not in opened:
                opened[name] = now
                out_since, self._out_since = self._out_since, 0
                words = self._words
                self._opened_ever = ever = self._opened_ever + 1
                sequence = self._sequence
                entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
                words[SEQUENCE] = sequence + 1
                words[SECTIONS_OPENED] = ever
                words[SINCE + slot] = now
                words[OUT_SINCE] = 0
                words[LAST_EDGE] = now
                words[entry] = now
                words[entry + 1] = START | slot + 1 << KIND_BITS
                words[SEQUENCE] = self._sequence = sequence + 2
                if out_since:
                    self._observe_outside(now - out_since)
                return True
        return False

    def end_section(self, name: str) -> bool:
        """Close a section; False if it is not open."""
        with self._lock:
            now = monotonic_ns()
            opened = self._opened
            if name in opened:
                since = opened[name]
                del opened[name]
                self._out_since = out_since = now * (not opened)
                slot = self._slots[name]
                words = self._words
                spent = now - since
                total = words[SPENT + slot] + spent & LARGEST
                closed = words[CLOSED + slot] + 1 & LARGEST
                sequence = self._sequence
                entry = RING + (sequence >> 1 & RING_MASK) * EVENT_WORDS
                words[SEQUENCE] = sequence + 1
                words[SINCE + slot] = 0
                words[SPENT + slot] = total
                words[CLOSED + slot] = closed
                words[OUT_SINCE] = out_since
                words[LAST_EDGE] = now
                words[entry] = now
                words[entry + 1] = END | slot + 1 << KIND_BITS
                words[SEQUENCE] = self._sequence = sequence + 2
                if name == CHECKPOINTING:  # by itself: on the stretch above it would take a jump
                    words[CHECKPOINT_STEP] = words[STEP]
                self._observe_inside(name, spent)
                return True
        return False

    @property
    def attached(self) -> bool:
        """True while others can see what is written here."""
        return self._file is not None

    @property
    def identity(self) -> Identity | None:
        """The process that the launcher bound the board to; None before that, or without a board."""
        with self._lock:
            return read_identity(self._identity) if self._file else None

    @property
    def limits(self) -> Limits:
        with self._lock:
            return L.read_limits(self._rare)

    @property
    def opened_ns(self) -> dict[str, int]:
        """When each section that is open now was opened, oldest first."""
        with self._lock:
            return dict(self._opened)

    @property
    def last_heartbeat_ns(self) -> int:
        """Since when the limit between two heartbeats runs; 0 before the first heartbeat."""
        with self._lock:
            return int(self._words[L.LAST_HEARTBEAT])

    @property
    def _rare(self) -> memoryview:
        return self._words[L.RARE : L.STATE_WORDS]

    @property
    def out_of_section_since_ns(self) -> int:
        """When the last open section closed; 0 while one is open, and before the first."""
        return self._out_since

    def set_limits(self, limits: Limits) -> None:
        """Put limits in force; they bind at once. Sections that are not named lose theirs."""
        with self._lock:
            self._edit(lambda draft: L.write_limits(draft, limits))
            for slot, name in enumerate(L.section_names(self._rare)):
                self._slots.setdefault(name, slot)

    def request(self, request: Request) -> None:
        """Ask something of the launcher; a later request replaces an earlier one."""
        self._edit(lambda draft: L.write_request(draft, request))

    def connect(self) -> None:
        """Supervision begins. After `finish` it begins again: what was left open is closed, and clocks start now."""
        with self._lock:
            self._opened.clear()
            now, words = monotonic_ns(), self._words
            self._out_since = now if self._opened_ever else 0
            self._last_beat = 0  # the time without supervision is no gap
            words[L.SEQUENCE] = self._sequence + 1
            words[L.SINCE : L.SPENT] = _ALL_CLOSED
            words[L.CONNECTED_AT] = now
            words[L.OUT_SINCE] = self._out_since
            words[L.LAST_HEARTBEAT] = now if self._beats else 0
            self._note(L.CONNECT, 0, 0, now, L.FLAG_CONNECTED)

    def finish(self) -> None:
        """Supervision ends because the program ends it. What is open stays on the board as evidence."""
        with self._lock:
            self._note(L.FINISH, 0, 0, monotonic_ns(), L.FLAG_CONNECTED | L.FLAG_FINISHED)

    def mark(self, name: str, value: int = 0) -> None:
        """Put something of the program's own into the flight record. Its name takes a section's slot."""
        slot = self._slots[name] if name in self._slots else self._new_slot(name)
        with self._lock:
            self._note(L.MARK, slot + 1, value, monotonic_ns())

    def checkpoint(self, value: int = 0) -> None:
        """A checkpoint was saved, outside a "checkpointing" section (the end of one counts by itself).

        Args:
            value: Its step; 0 stands for the step of the last heartbeat that had one.
        """
        with self._lock:
            words = self._words
            words[L.CHECKPOINT_STEP] = value + 1 if value else words[L.STEP]
            words[L.CHECKPOINTS] = words[L.CHECKPOINTS] + 1 & L.LARGEST
            self._note(L.CHECKPOINT, 0, value, monotonic_ns())

    def end_all_sections(self) -> None:
        with self._lock:
            for name in tuple(self._opened):
                self.end_section(name)

    def detach(self) -> None:
        """From now on write to private memory; lets go of the board. Safe to call at any time, also twice."""
        with self._lock:  # no thread is in the middle of a write to what is unmapped now
            file, self._file = self._file, None
            self._identity = private_words(L.IDENTITY_BYTES)
            self._words = private_words(L.RANK_BYTES)
            if file is not None:
                file.close()

    def _note(self, kind: int, name: int, value: int, now: int, flags: int | None = None) -> None:
        words = self._words
        flags = words[L.FLAGS] if flags is None else flags
        entry = L.RING + (self._sequence >> 1 & L.RING_MASK) * L.EVENT_WORDS
        words[L.SEQUENCE] = self._sequence + 1
        words[L.FLAGS] = flags
        words[L.LAST_EDGE] = now
        words[entry] = now
        words[entry + 1] = kind | name << L.KIND_BITS
        words[entry + 2] = value
        self._sequence += 2
        words[L.SEQUENCE] = self._sequence

    def _edit(self, change: Callable[[memoryview], _T]) -> _T:
        with self._lock:
            rare = self._rare
            draft = memoryview(bytearray(rare)).cast("q")
            draft[L.RARE_SEQUENCE] = rare[L.RARE_SEQUENCE] | 1
            result = change(draft)
            rare[L.RARE_SEQUENCE] = draft[L.RARE_SEQUENCE]
            rare[:] = draft
            rare[L.RARE_SEQUENCE] = draft[L.RARE_SEQUENCE] + 1
            return result

    def _new_slot(self, name: str) -> int:
        """The slot of a name that is used for the first time."""
        if not isinstance(name, str):
            raise TypeError(f"a name is a string, not {type(name).__name__}")
        if not name:
            raise ValueError("a name is not empty")
        slot = self._edit(lambda draft: L.slot_of(draft, name))
        self._slots[name] = slot
        if slot == L.OTHERS and not self._overflowed:
            self._overflowed = True
            self._without_lock(
                _log.warning,
                "more than %d different section names: %r and later new ones are not supervised; "
                "use a fixed set of names",
                L.MAX_SECTIONS,
                name,
            )
        return slot

    def _without_lock(self, log: Callable[..., object], *args: object) -> None:
        """Call `log`, which may block; in a thread where this one has the lock: in a signal handler in a heartbeat."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            with suppress(RuntimeError):  # no thread can be started: the line is lost
                _thread.start_new_thread(log, args)
        else:
            log(*args)

    def _after_fork_in_child(self) -> None:
        # Another thread of the parent may have held the lock; it does not exist here.
        self._lock = threading.RLock()
        self.detach()


def _claim(path: str) -> tuple[MappedFile, memoryview, memoryview]:
    """The board's file, locked; its page 0, read-only; and the rank's part, now this process's own."""
    file = None
    try:
        file = MappedFile(path)
        L.check_header(path, file.head(L.P_WORDS * L.WORD), file.size)
        if not file.lock():
            raise BoardError(
                f"{path}: process {file.lock_owner()} already writes this board; "
                f"process {os.getpid()} (a child of it?) is not supervised on its own"
            )
        page = file.words(L.IDENTITY_BYTES, writable=False)
        words = file.words(L.RANK_BYTES, L.IDENTITY_BYTES)
        _check_owner(path, page, words)
    except (OSError, BoardError) as error:
        if file is not None:
            file.close()
        if isinstance(error, BoardError):
            raise
        raise BoardError(f"{path}: no board to write: {error.strerror or error}") from error
    me = os.getpid(), proc.start_time(os.getpid()) or 0
    if (words[L.OWNER], words[L.OWNER_START]) != me:
        reset(words, me)
    return file, page, words


def _check_owner(path: str, page: memoryview, words: memoryview) -> None:
    """BoardError unless this process may write here. The board of a `RankMonitorServer`, which asks the kernel who
    writes, is free for any process."""
    owner, bound = words[L.OWNER], read_identity(page)
    if page[L.P_SUCCESSIVE] or owner in (0, os.getpid()) or (bound is not None and bound.pid == os.getpid()):
        return
    if proc.is_running(owner, words[L.OWNER_START]):
        raise BoardError(
            f"{path}: this is the board of process {owner}, which still runs; process {os.getpid()} (a child of it?) "
            "is not supervised on its own"
        )


def reset(words: memoryview, owner: tuple[int, int] | None = None) -> None:
    """Forget everything that was written. `owner` (pid and start time; by default the present one) writes from now on.

    The sequence number continues: a reader may be in the middle of a reading.
    """
    owner = owner or (words[L.OWNER], words[L.OWNER_START])
    sequence = words[L.SEQUENCE] | 1
    words[L.SEQUENCE] = sequence
    words[L.SEQUENCE + 1 : L.RARE] = memoryview(bytes((L.RARE - 1) * L.WORD)).cast("q")
    words[L.OWNER], words[L.OWNER_START] = owner
    words[L.FIRST_EVENT] = (sequence + 1) >> 1
    words[L.SEQUENCE] = sequence + 1


_ALL_CLOSED = memoryview(bytearray((L.SPENT - L.SINCE) * L.WORD)).cast("q")
