"""The rank's hand on its board: what `strokes` does often, and everything that is done rarely.

No call blocks or fails because of a reader. Rare changes (limits, a new section's name, a request) are made in a
copy and stored as one block, so they are as whole as the hot ones.

A forked child (a data loader's worker) inherits the writer but not the board: in the child everything goes to private
memory. Does not cover: a fork that bypasses Python's own (`os.fork`, `multiprocessing`), made by a C library that
then runs Python code in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from time import monotonic_ns
from typing import TypeVar

from ..errors import BoardError
from ..rank_log import log as _log
from . import layout as L
from . import state
from .memory import BoardMemory, private_words
from .owner import check_free, take_over
from .reader import read_identity
from .records import Identity, Limits, Request
from .strokes import Observer, Strokes

_T = TypeVar("_T")


class NoObserver:
    """Observes nothing."""

    def heartbeat(self, now_ns: int, gap_ns: int) -> None: ...
    def in_section(self, name: str, spent_ns: int) -> None: ...
    def out_of_section(self, spent_ns: int) -> None: ...


class BoardWriter(Strokes):
    """Writes one rank's board; thread-safe. With `path` None it writes private memory that nobody reads.

    A process that opens a board again carries its counts on; those of another process before it are forgotten.
    `observer` is told of every heartbeat and section edge; `on_new_section` of the first opening of a section that
    nobody named before, and that therefore has no limit.
    Raises BoardError if `path` is not a board of this version or another process holds it or owns it (`owner`).
    """

    __slots__ = ("__weakref__", "_memory", "_on_new_section", "_overflowed")

    def __init__(
        self,
        path: str | None,
        observer: Observer | None = None,
        on_new_section: Callable[[str], None] | None = None,
    ) -> None:
        self._memory = BoardMemory(path) if path is not None else None
        words = self._memory.words if self._memory else private_words()
        if self._memory:
            self._check_free(path or "", self._memory)
        take_over(words)
        super().__init__(words, observer or NoObserver())
        self._slots = {name: slot for slot, name in enumerate(state.names(self._rare))}
        self._overflowed = False
        self._on_new_section = on_new_section
        _WRITERS.add(self)

    @staticmethod
    def _check_free(path: str, memory: BoardMemory) -> None:
        try:
            check_free(path, memory.identity, memory.words)
        except BoardError:
            memory.close()
            raise

    @property
    def attached(self) -> bool:
        """True while others can see what is written here."""
        return self._memory is not None

    @property
    def identity(self) -> Identity | None:
        """Who the launcher says we are; None before it has admitted us, or without a board."""
        with self._lock:
            return read_identity(self._memory.identity) if self._memory else None

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        with self._lock:
            return state.read_limits(self._rare)

    @property
    def open_sections(self) -> tuple[str, ...]:
        """The sections open now, oldest first."""
        return tuple(self.opened_ns)

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
            self._edit(lambda draft: state.write_limits(draft, limits))
            self._slots = {
                **{name: slot for slot, name in enumerate(state.names(self._rare))},
                **self._slots,
            }

    def request(self, request: Request) -> None:
        """Ask something of the launcher; a later request replaces an earlier one."""
        self._edit(lambda draft: state.write_request(draft, request))

    def connect(self) -> None:
        """Supervision begins. After `finish` it begins again: what was left open is closed, and clocks start now."""
        with self._lock:
            self._opened.clear()
            now, words = monotonic_ns(), self._words
            self._out_since = now if self._opened_ever else 0
            self._last_beat = 0  # the time without supervision is no gap
            self._over = False
            words[L.SEQUENCE] = self._sequence + 1
            words[L.SINCE : L.SPENT] = _ALL_CLOSED
            words[L.CONNECTED_AT] = now
            words[L.OUT_SINCE] = self._out_since
            words[L.LAST_HEARTBEAT] = now if self._beats else 0
            self._note(L.CONNECT, 0, 0, now, L.FLAG_CONNECTED)

    def finish(self) -> None:
        """Supervision ends because the program says so. What is open stays on the board as evidence."""
        with self._lock:
            self._over = True
            self._note(L.FINISH, 0, 0, monotonic_ns(), L.FLAG_CONNECTED | L.FLAG_FINISHED)

    def mark(self, name: str, value: int = 0) -> None:
        """Put something of the program's own into the flight record. Its name takes a section's slot."""
        with self._lock:
            slot = self._slots[name] if name in self._slots else self._slot_for(name)
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

    def end_all_sections(self) -> int:
        """Close whatever is open; returns how many sections that were."""
        with self._lock:
            return sum(self.end_section(name) for name in tuple(self._opened))

    def detach(self) -> None:
        """From now on write to private memory; lets go of the board. Safe to call at any time, also twice."""
        with self._lock:  # nobody is in the middle of a write to what is unmapped now
            memory, self._memory = self._memory, None
            self._words = private_words()
            self._bind(self._words)
            if memory is not None:
                memory.close()

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
        slot = self._slot_for(name)
        if self._on_new_section is not None:
            self._on_new_section(name)
        return slot

    def _slot_for(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"a name is a string, not {type(name).__name__}")
        if not name:
            raise ValueError("a name is not empty")
        slot = self._edit(lambda draft: state.slot_of(draft, name))
        self._slots[name] = slot
        if slot == L.OTHERS and not self._overflowed:
            self._overflowed = True
            _log.warning(
                "more than %d different section names: %r and later new ones are not supervised; "
                "use a fixed set of names",
                L.MAX_SECTIONS,
                name,
            )
        return slot

    def _after_fork_in_child(self) -> None:
        # Another thread of the parent may have held the lock; it does not exist here.
        self._lock = threading.RLock()
        self.detach()


_ALL_CLOSED = memoryview(bytearray((L.SPENT - L.SINCE) * L.WORD)).cast("q")
_WRITERS: weakref.WeakSet[BoardWriter] = weakref.WeakSet()


def _detach_all_in_child() -> None:
    for writer in list(_WRITERS):
        writer._after_fork_in_child()


os.register_at_fork(after_in_child=_detach_all_in_child)
