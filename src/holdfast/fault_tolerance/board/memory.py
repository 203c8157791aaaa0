"""Where a writer's words live: the rank's board, mapped and held, or private memory when there is no board to write.

Holding a board takes a POSIX record lock on its file: it keeps a child process that inherited the environment from
writing into its parent's board, it ends with the process however that dies, and the kernel tells anyone who holds it
(`holder`), which no rank can forge. Does not cover: another descriptor of the same file closed in the same process,
which by POSIX rules drops the lock; nothing in a rank opens its board twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct

from ..errors import BoardError
from . import layout as L

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class BoardMemory:
    """One rank's board, mapped: page 0 read-only, the rank's part writable.

    Raises BoardError if `path` is not a board of this version and this user's, or another process holds it.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._maps: list[mmap.mmap] = []
        try:
            self._fd = os.open(
                path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
            )  # a planted pipe is not waited for
            size = L.check_file(path, self._fd)
            L.check_header(path, os.pread(self._fd, L.P_WORDS * L.WORD, 0), size)
            _hold(path, self._fd)
            self._maps.append(mmap.mmap(self._fd, L.IDENTITY_BYTES, prot=mmap.PROT_READ))
            self._maps.append(mmap.mmap(self._fd, L.RANK_BYTES, offset=L.IDENTITY_BYTES))
        except (OSError, BoardError) as error:
            self.close()
            if isinstance(error, BoardError):
                raise
            raise BoardError(f"{path}: no board to write: {error.strerror or error}") from error
        self.identity, self.words = (memoryview(pages).cast("q") for pages in self._maps)

    def __del__(self) -> None:
        self.close()  # a client that was dropped without a shutdown

    def close(self) -> None:
        """Unmap and let go of the board. Safe to call twice."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        # A view that another thread still uses keeps the mapping alive until that thread is done with it.
        with contextlib.suppress(BufferError):
            for view in (self.identity, self.words) if len(self._maps) == 2 else ():
                view.release()
            for pages in self._maps:
                pages.close()


def private_words() -> memoryview:
    """Memory laid out like the rank's part of a board, which nobody else sees."""
    return memoryview(bytearray(L.RANK_BYTES)).cast("q")


def holder(path: str) -> int | None:
    """The process that holds the board at `path` for writing, told by the kernel; None if nobody does.

    A rank in another pid namespace is reported as 0 or below by the kernel, which is None here.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise BoardError(f"{path}: no board: {error.strerror or error}") from error
    try:
        return _lock_holder(fd)
    finally:
        os.close(fd)


def _hold(path: str, fd: int) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BoardError(
                f"{path}: process {_lock_holder(fd)} already writes this board; "
                f"process {os.getpid()} (a child of it?) is not supervised on its own"
            ) from error
        # A filesystem without locks: supervision works, only the protection against two writers is missing.


def _lock_holder(fd: int) -> int | None:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None
