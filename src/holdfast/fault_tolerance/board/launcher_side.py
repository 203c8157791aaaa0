"""The launcher's hold on a board: allocates the file in full, writes the first limits and who the rank is.

A board that exists has all its pages: a full tmpfs is `BoardUnavailable` here, never a SIGBUS in training. The file
is 0600 in directories of 0700. Does not cover: removing directories, which belong to the launcher as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

from ..errors import BoardError, BoardUnavailable
from . import layout as L
from .reader import read_events, read_snapshot
from .records import BoardEvent, Identity, Limits, Snapshot
from .state import write_limits


class Board:
    """A rank's board as its launcher holds it: mapped in full, closed by `close`, the file stays until `remove`."""

    def __init__(self, path: str, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        self._words = memoryview(memory).cast("q")

    @classmethod
    def create(cls, path: str, limits: Limits, *, successive: bool = False) -> Board:
        """Allocate a new board at `path` with `limits` in force, making missing parent directories (0700).

        On a `successive` one any process may follow another, also while that one still runs (see `owner`).

        Raises BoardUnavailable when the file cannot be made or allocated, BoardError when it exists already.
        """
        try:
            _make_private_directories(os.path.dirname(path))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise BoardError(f"{path}: a board exists already; every cycle has its own") from error
        except OSError as error:
            raise BoardUnavailable(_unavailable(path, error)) from error
        try:
            os.posix_fallocate(fd, 0, L.BOARD_BYTES)
            memory = mmap.mmap(fd, L.BOARD_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise BoardUnavailable(_unavailable(path, error)) from error
        finally:
            os.close(fd)
        board = cls(path, memory)
        board._initialise(limits, successive)
        return board

    @classmethod
    def open(cls, path: str) -> Board:
        """The board that another process of the launcher's side has created. Raises BoardError if it is none of this
        version and this user's."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BoardError(f"{path}: no board: {error.strerror or error}") from error
        try:
            size = L.check_file(path, fd)
            L.check_header(path, os.pread(fd, L.P_WORDS * L.WORD, 0), size)
            return cls(path, mmap.mmap(fd, L.BOARD_BYTES))
        except OSError as error:
            raise BoardError(f"{path}: no board: {error.strerror or error}") from error
        finally:
            os.close(fd)

    def _initialise(self, limits: Limits, successive: bool) -> None:
        write_limits(self._words[L.IDENTITY_BYTES // L.WORD + L.RARE :], limits)
        self._words[L.P_SUCCESSIVE] = successive
        self._words[L.P_SIZE] = L.BOARD_BYTES
        self._words[L.P_VERSION] = L.VERSION
        self._words[L.P_MAGIC] = L.MAGIC  # last: a file with the magic is a whole board

    def admit(self, identity: Identity) -> None:
        """Say which process this board belongs to. A second call replaces the first."""
        words = self._words
        words[L.P_SEQUENCE] |= 1
        words[L.P_PID] = identity.pid
        words[L.P_START_TIME] = identity.start_time
        words[L.P_RANK] = identity.rank
        words[L.P_LOCAL_RANK] = identity.local_rank
        words[L.P_CYCLE] = identity.cycle
        words[L.P_STARTED] = identity.started_ns
        words[L.P_SEQUENCE] += 1

    def snapshot(self) -> Snapshot:
        """What the board says now; takes at most a few milliseconds whatever the rank does."""
        return read_snapshot(self._words)

    def events(self) -> list[BoardEvent]:
        """The flight record, oldest first: at most the last `layout.RING_EVENTS` events."""
        return read_events(self._words)

    def close(self) -> None:
        """Unmap the board; the file stays, and so does what others have mapped. Safe to call twice."""
        self._words.release()
        with contextlib.suppress(BufferError):  # another thread is reading: unmapped when it is done
            self._memory.close()

    def remove(self) -> None:
        """Close the board and delete its file."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


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


def _unavailable(path: str, error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0, "check that this user can make files there")
    return (
        f"{path}: no shared memory for a board ({error.strerror or error}; {L.BOARD_BYTES} bytes needed): "
        f"the rank runs without supervision; {advice}"
    )
