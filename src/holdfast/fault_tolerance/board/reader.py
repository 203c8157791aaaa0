"""Reading a board: from any process of the node, at any moment of the rank's life or after it.

Nothing here waits for the rank: a reading takes at most a few milliseconds, also when the rank was killed or stopped
in the middle of a write (then `Snapshot.consistent` is False). Nothing that is read is ever executed or unpickled.

Does not cover: a rank that scribbles over its own page by accident; readers then return odd values, but do not fail.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time

from ..errors import BoardError
from . import layout as L
from . import state
from .records import BoardEvent, Identity, OpenSection, SectionTotal, Snapshot

_RANK_PART = L.IDENTITY_BYTES // L.WORD
_SPINS = 64  # a write takes less than a microsecond: almost always one of these succeeds
_NAPS = 16  # the writer may have lost its core in the middle of a write
_NAP_S = 0.0001
# Stores become visible in order on x86. Elsewhere a second, equal copy stands in for the barrier Python has not.
_STORES_ARE_ORDERED = os.uname().machine in ("x86_64", "i686")


class BoardReader:
    """A read-only view of one board. Raises BoardError if `path` is not a board of this version and this user's."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a planted pipe is not waited for
        except OSError as error:
            raise BoardError(f"{path}: no board to read: {error.strerror or error}") from error
        try:
            size = L.check_file(path, fd)
            L.check_header(path, os.pread(fd, L.P_WORDS * L.WORD, 0), size)
            self._memory = mmap.mmap(fd, L.BOARD_BYTES, prot=mmap.PROT_READ)
        except OSError as error:
            raise BoardError(f"{path}: the board cannot be read: {error.strerror or error}") from error
        finally:
            os.close(fd)
        self._words = memoryview(self._memory).cast("q")

    def snapshot(self) -> Snapshot:
        """What the board says now."""
        return read_snapshot(self._words)

    def events(self) -> list[BoardEvent]:
        """The flight record, oldest first."""
        return read_events(self._words)

    def close(self) -> None:
        """Unmap the board. Safe to call twice."""
        self._words.release()
        with contextlib.suppress(BufferError):  # another thread is reading: unmapped when it is done
            self._memory.close()


def read_snapshot(board: memoryview) -> Snapshot:
    """Decode a whole board given as 8-byte words."""
    identity, head_consistent = _identity(board)
    part = board[_RANK_PART : _RANK_PART + L.STATE_WORDS]
    words, consistent = _stable_copy(part[: L.RARE], L.SEQUENCE)
    rare, rare_consistent = _stable_copy(
        part[L.RARE :], L.RARE_SEQUENCE
    )  # second: it names what is open in the first
    known = state.names(rare)
    opened = (
        OpenSection(name, words[L.SINCE + slot]) for slot, name in enumerate(known) if words[L.SINCE + slot]
    )
    totals = {
        name: SectionTotal(words[L.CLOSED + slot], words[L.SPENT + slot])
        for slot, name in enumerate(known)
        if words[L.CLOSED + slot]
    }
    saved = totals.get(L.CHECKPOINTING)
    return Snapshot(
        identity=identity,
        connected=bool(words[L.FLAGS] & L.FLAG_CONNECTED),
        finished=bool(words[L.FLAGS] & L.FLAG_FINISHED),
        connected_ns=words[L.CONNECTED_AT],
        heartbeat_count=words[L.HEARTBEATS],
        last_heartbeat_ns=words[L.LAST_HEARTBEAT],
        step=words[L.STEP] - 1 if words[L.STEP] else None,
        section_count=words[L.SECTIONS_OPENED],
        open_sections=tuple(sorted(opened, key=lambda section: section.since_ns)),
        out_of_section_since_ns=words[L.OUT_SINCE],
        last_activity_ns=max(words[L.LAST_HEARTBEAT], words[L.LAST_EDGE]),
        checkpoints=words[L.CHECKPOINTS] + (saved.count if saved else 0),
        limits=state.read_limits(rare),
        request=state.read_request(rare),
        consistent=consistent and rare_consistent and head_consistent,
        first_step_ns=words[L.FIRST_STEP],
        longest_step_ns=words[L.LONGEST_STEP],
        checkpoint_step=words[L.CHECKPOINT_STEP] - 1 if words[L.CHECKPOINT_STEP] else None,
        section_totals=totals,
    )


def read_events(board: memoryview) -> list[BoardEvent]:
    """Decode the ring. Events that were overwritten while we copied it are left out, so none is ever torn."""
    part = board[_RANK_PART:]
    end = part[L.SEQUENCE] >> 1  # read before the ring: all events below it are complete
    ring = memoryview(bytes(part[L.RING : L.RANK_WORDS])).cast("q")
    names = state.names(part[L.RARE :])
    overwritten = (
        part[L.SEQUENCE] >> 1
    ) - L.RING_EVENTS  # this one's slot may be in use by the event being written
    events = []
    for number in range(max(part[L.FIRST_EVENT], overwritten + 1), end):
        at = (number & L.RING_MASK) * L.EVENT_WORDS
        when, code, value = ring[at : at + 3]
        kind, slot = code & ((1 << L.KIND_BITS) - 1), (code >> L.KIND_BITS) - 1
        if kind < len(L.EVENT_KINDS):
            name = names[slot] if 0 <= slot < len(names) else ""
            events.append(BoardEvent(L.EVENT_KINDS[kind], when, name, value if kind in L.WITH_VALUE else 0))
    return events


def read_identity(board: memoryview) -> Identity | None:
    """Who the board belongs to; None until the launcher has admitted a rank. Needs only page 0."""
    return _identity(board)[0]


def _identity(board: memoryview) -> tuple[Identity | None, bool]:
    head, consistent = _stable_copy(board[: L.P_WORDS], L.P_SEQUENCE)
    if not consistent or head[L.P_SEQUENCE] == 0:
        return None, consistent
    return Identity(*(head[L.P_PID : L.P_STARTED + 1])), True


def _stable_copy(part: memoryview, sequence: int) -> tuple[memoryview, bool]:
    """A copy of `part` that no write overlapped, and True; after bounded trying, what is there, and False."""
    for attempt in range(_SPINS + _NAPS):
        if attempt >= _SPINS:
            time.sleep(_NAP_S)
        before = part[sequence]
        copy = bytes(part)
        if before & 1 or part[sequence] != before:
            continue
        if _STORES_ARE_ORDERED or bytes(part) == copy:
            return memoryview(copy).cast("q"), True
    return memoryview(bytes(part)).cast("q"), False
