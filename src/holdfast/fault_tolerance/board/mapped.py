"""Files of shared memory: allocated in full, checked before use, mapped as 8-byte words, locked by their writer.

Boards, the monitor's control page and the pages of an agreed stop are such files. A file that exists has all its
memory: a full tmpfs fails in `create`, never as a SIGBUS in training. A mapping lives as long as the last view of it,
so a thread that still reads a page that was closed elsewhere does not fail.

The lock is a POSIX record lock. It keeps a child process that inherited the environment from writing its parent's
page, and it ends with the process however that dies. The kernel names its owner (`lock_owner`), which no rank can
forge.

Does not cover: another descriptor of the same file closed in the same process, which by POSIX rules drops the lock;
nothing in a rank opens its board twice. Filesystems without locks: only the protection against two writers is missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import BoardError

if TYPE_CHECKING:
    from typing_extensions import Self

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def create(path: str, size: int) -> memoryview:
    """The words of a new file (0600), all of whose pages are allocated. OSError where that fails; no file is left."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return memoryview(mmap.mmap(fd, size)).cast("q")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def private_words(size: int) -> memoryview:
    """Memory like a mapped file of `size` bytes, which no other process sees."""
    return memoryview(bytearray(size)).cast("q")


_INHERITED: weakref.WeakSet[Any] = weakref.WeakSet()


def detach_in_child(user: Any) -> None:
    """Call `user._after_fork_in_child()` in each forked child, which is not to write this process's pages."""
    _INHERITED.add(user)


def _detach_all_in_child() -> None:
    for user in list(_INHERITED):
        user._after_fork_in_child()


os.register_at_fork(after_in_child=_detach_all_in_child)


class MappedFile:
    """An existing file, open until `close`; what is mapped stays mapped.

    Raises OSError if it cannot be opened, BoardError unless it is a regular file of this user's. A foreign file may
    have been planted where a board is expected: its writer could have any process of ours signalled.
    """

    _fd = -1

    def __init__(self, path: str, mode: int = os.O_RDWR) -> None:
        self._fd = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK)  # a planted pipe is not waited for
        found = os.fstat(self._fd)
        self.size = found.st_size
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return
        self.close()
        if not stat.S_ISREG(found.st_mode):
            raise BoardError(f"{path}: not a board: no regular file (mode {found.st_mode:o})")
        raise BoardError(
            f"{path}: belongs to user {found.st_uid}, this process to user {os.geteuid()}: not used"
        )

    def head(self, length: int) -> bytes:
        """The first bytes of the file, at most `length`."""
        return os.pread(self._fd, length, 0)

    def words(self, length: int, start: int = 0, *, writable: bool = True) -> memoryview:
        """Map `length` bytes from byte `start` on."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return memoryview(mmap.mmap(self._fd, length, prot=protection, offset=start)).cast("q")

    def lock(self) -> bool:
        """Claim the file for this process until `close`; False if another process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def lock_owner(self) -> int | None:
        """Pid of the process that has the lock, as the kernel reports it; None without one.

        A process in another pid namespace is reported as 0 or below by the kernel, which is None here.
        """
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def close(self) -> None:
        """Close the descriptor, and drop the lock with it. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # also of a client that was dropped without a shutdown, and of a file that was refused


class Page:
    """A mapped file of one page: its `words`, of which the first is the magic.

    With `locked`, this process is the only one that has it so. Raises BoardError when the file is no page of this
    version and this user's, or another process has it locked; OSError when it cannot be opened.
    """

    SIZE: ClassVar[int] = 4096
    MAGIC: ClassVar[int]
    KIND: ClassVar[str]

    def __init__(self, path: str, *, locked: bool = False) -> None:
        self._file: MappedFile | None = None
        file = MappedFile(path)
        if file.size != self.SIZE:
            raise BoardError(f"{path}: no {self.KIND}: {file.size} bytes found, {self.SIZE} expected")
        self.words = file.words(self.SIZE)
        if self.words[0] != self.MAGIC:
            raise BoardError(f"{path}: no {self.KIND} of this version of holdfast")
        if locked and not file.lock():
            raise BoardError(
                f"{path}: another process of this rank takes part already; process {os.getpid()} "
                "(a child of it?) does not"
            )
        if locked:
            self._file = file

    @classmethod
    def create(cls, path: str) -> Self:
        """A fresh page, allocated in full; the file is 0600. OSError when it cannot be made."""
        page = cls.__new__(cls)
        page._file = None
        page.words = create(path, cls.SIZE)
        page.words[0] = cls.MAGIC
        return page

    def close(self) -> None:
        """Let go of the page. The memory is unmapped when the last view of it is dropped. Safe to call twice."""
        self.words = private_words(self.SIZE)
        file, self._file = self._file, None
        if file is not None:
            file.close()
