"""Reading a board from any process of the node, at any moment of the rank's life or after it; and the launcher's side.

A reading takes at most a few milliseconds and never waits for the rank, also when the rank was killed or stopped
in the middle of a write (then `Snapshot.consistent` is False). Nothing that is read is ever executed or unpickled.
The launcher allocates the file in full, writes the first limits, and binds the board to the rank's process.

Does not cover: a rank that scribbles over its own page by accident; readers then return odd values, but do not fail.
Removing directories, which belong to the launcher as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from ..errors import BoardError, BoardUnavailable
from . import layout as L
from . import mapped
from .values import BoardEvent, Identity, Limits, OpenSection, SectionTotal, Snapshot

_RANK_PART = L.IDENTITY_BYTES // L.WORD
_SPINS = 64  # a write takes less than a microsecond: almost always one of these succeeds
_NAPS = 16  # the writer may have lost its core in the middle of a write
_NAP_S = 0.0001
# Stores become visible in order on x86. Elsewhere a second, equal copy replaces the barrier that Python lacks.
_STORES_ARE_ORDERED = os.uname().machine in ("x86_64", "i686")


class BoardReader:
    """A read-only view of one board. Raises BoardError if `path` is not a board of this version and this user's."""

    def __init__(self, path: str, *, writable: bool = False) -> None:
        self.path = path
        try:
            with mapped.MappedFile(path, os.O_RDWR if writable else os.O_RDONLY) as file:
                L.check_header(path, file.head(L.P_WORDS * L.WORD), file.size)
                self._words = file.words(L.BOARD_BYTES, writable=writable)
        except OSError as error:
            raise BoardError(f"{path}: the board cannot be read: {error.strerror or error}") from error

    def snapshot(self) -> Snapshot:
        """The values on the board now; takes at most a few milliseconds whatever the rank does."""
        identity, head_consistent = _identity(self._words)
        part = self._words[_RANK_PART : _RANK_PART + L.STATE_WORDS]
        words, consistent = _stable_copy(part[: L.RARE], L.SEQUENCE)
        # Second: it names what is open in the first.
        rare, rare_consistent = _stable_copy(part[L.RARE :], L.RARE_SEQUENCE)
        names = L.section_names(rare)
        since = {name: words[L.SINCE + slot] for slot, name in enumerate(names)}
        totals = {
            name: SectionTotal(words[L.CLOSED + slot], words[L.SPENT + slot])
            for slot, name in enumerate(names)
            if words[L.CLOSED + slot]
        }
        saved = totals.get(L.CHECKPOINTING)
        # A Python below a rank that is a shell script may have marked the board before it was bound to the rank.
        is_its_own = identity is not None and words[L.MAIN_ENDED_PID] == identity.pid
        main_ended = words[L.MAIN_ENDED] if is_its_own else 0
        return Snapshot(
            identity=identity,
            connected=bool(words[L.FLAGS] & L.FLAG_CONNECTED),
            finished=bool(words[L.FLAGS] & L.FLAG_FINISHED),
            connected_ns=words[L.CONNECTED_AT],
            heartbeat_count=words[L.HEARTBEATS],
            last_heartbeat_ns=words[L.LAST_HEARTBEAT],
            step=words[L.STEP] - 1 if words[L.STEP] else None,
            section_count=words[L.SECTIONS_OPENED],
            open_sections=tuple(
                OpenSection(name, at) for name, at in sorted(since.items(), key=lambda item: item[1]) if at
            ),
            out_of_section_since_ns=words[L.OUT_SINCE],
            last_activity_ns=max(words[L.LAST_HEARTBEAT], words[L.LAST_EDGE]),
            checkpoints=words[L.CHECKPOINTS] + (saved.count if saved else 0),
            limits=L.read_limits(rare),
            request=L.read_request(rare),
            consistent=consistent and rare_consistent and head_consistent,
            first_step_ns=words[L.FIRST_STEP],
            longest_step_ns=words[L.LONGEST_STEP],
            checkpoint_step=words[L.CHECKPOINT_STEP] - 1 if words[L.CHECKPOINT_STEP] else None,
            main_ended_ns=abs(main_ended),
            main_raised=main_ended < 0,
            section_totals=totals,
        )

    def events(self) -> list[BoardEvent]:
        """The flight record, oldest first: at most the last `layout.RING_EVENTS` events.

        Events that were overwritten while it was copied are left out, so none is ever torn.
        """
        part = self._words[_RANK_PART:]
        end = part[L.SEQUENCE] >> 1  # read before the ring: all events below it are complete
        ring = memoryview(bytes(part[L.RING : L.RANK_WORDS])).cast("q")
        names = L.section_names(part[L.RARE :])
        # The slot of this one may be in use by the event being written.
        overwritten = (part[L.SEQUENCE] >> 1) - L.RING_EVENTS
        events = []
        for number in range(max(part[L.FIRST_EVENT], overwritten + 1), end):
            at = (number & L.RING_MASK) * L.EVENT_WORDS
            when, code, value = ring[at : at + 3]
            kind, slot = code & ((1 << L.KIND_BITS) - 1), (code >> L.KIND_BITS) - 1
            if kind < len(L.EVENT_KINDS):
                name = names[slot] if 0 <= slot < len(names) else ""
                events.append(
                    BoardEvent(L.EVENT_KINDS[kind], when, name, value if kind in L.WITH_VALUE else 0)
                )
        return events

    def close(self) -> None:
        """Unmap the board; the file stays, and so does what others have mapped. Safe to call twice."""
        self._words.release()


class Board(BoardReader):
    """A rank's board as its launcher holds it."""

    def __init__(self, path: str) -> None:
        """The board that another process of the launcher's side has created."""
        super().__init__(path, writable=True)

    @classmethod
    def create(cls, path: str, limits: Limits, *, successive: bool = False) -> Board:
        """Allocate a new board (0600) with `limits` in force, making missing parent directories (0700).

        On a `successive` one any process may follow another, also while that one still runs.

        Raises BoardUnavailable when the file cannot be made or allocated, BoardError when it exists already.
        """
        try:
            _make_private_directories(os.path.dirname(path))
            words = mapped.create(path, L.BOARD_BYTES)
        except FileExistsError as error:
            raise BoardError(f"{path}: a board exists already; every cycle has its own") from error
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "check that this user can make files there")
            raise BoardUnavailable(
                f"{path}: no shared memory for a board ({error.strerror or error}; {L.BOARD_BYTES} bytes needed): "
                f"the rank runs without supervision; {advice}"
            ) from error
        L.write_limits(words[_RANK_PART + L.RARE :], limits)
        words[L.P_SUCCESSIVE] = successive
        words[L.P_SIZE] = L.BOARD_BYTES
        words[L.P_VERSION] = L.VERSION
        words[L.P_MAGIC] = L.MAGIC  # last: a file with the magic is a whole board
        board = cls.__new__(cls)
        board.path, board._words = path, words
        return board

    def bind_process(self, identity: Identity) -> None:
        """Write which process this board belongs to. A second call replaces the first."""
        words = self._words
        words[L.P_SEQUENCE] |= 1
        words[L.P_PID] = identity.pid
        words[L.P_START_TIME] = identity.start_time
        words[L.P_RANK] = identity.rank
        words[L.P_LOCAL_RANK] = identity.local_rank
        words[L.P_CYCLE] = identity.cycle
        words[L.P_STARTED] = identity.started_ns
        words[L.P_SEQUENCE] += 1


def read_identity(board: memoryview) -> Identity | None:
    """Who the board belongs to; None until the launcher has bound it to a process. Needs only page 0."""
    return _identity(board)[0]


def _identity(board: memoryview) -> tuple[Identity | None, bool]:
    head, consistent = _stable_copy(board[: L.P_WORDS], L.P_SEQUENCE)
    if not consistent or head[L.P_SEQUENCE] == 0:
        return None, consistent
    return Identity(*(head[L.P_PID : L.P_STARTED + 1])), True


def _stable_copy(part: memoryview, sequence: int) -> tuple[memoryview, bool]:
    """A copy of `part` that no write overlapped, and True; after a bounded number of attempts, any copy, and False."""
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


def _make_private_directories(path: str) -> None:
    # os.makedirs gives its mode to the last level only; every level that we make is private.
    if path and not os.path.isdir(path):
        _make_private_directories(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


_FILES = "raise the limit of open files (ulimit -n)"
_SPACE = "free space on this filesystem"
_ADVICE = {
    errno.EMFILE: _FILES,
    errno.ENFILE: f"{_FILES}, and of this machine's (fs.file-max)",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOMEM: "free memory on this machine",
}
