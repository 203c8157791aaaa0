"""The page on which a rank and its launcher agree where the rank stops; it lies beside the rank's board.

The one place that knows its layout. It is a file of its own because a rank that takes part in an agreed stop need not
be a client of the monitor, whose limits would begin with that. Every word is one aligned 8-byte store and has one
writer: the launcher those of the first half, the rank those of the second. A proposal's place is written before its
number, into a slot of its own, so that a reader of the number never finds another proposal's place.

What always holds: a page that exists has its memory, so no later store can fail.
Does not cover: processors that reorder stores among threads of different processes more than x86 and what Python's
own atomic operations on ARM allow for; and protection from the rank's own user.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from ..board.layout import check_file
from ..errors import BoardError
from .rules import COMMIT, WITHDRAW, RankView, Word

SUFFIX = ".stop"
SIZE = 4096
MAGIC = 0x3130504F54534648  # "HFSTOP01"

# The launcher's words.
MAGIC_WORD, NUMBER, COMMITTED, WITHDRAWN, ASKED, DEADLINE = range(6)
PLACES = 16  # slots of the last proposals' places
SLOTS = 8
# The rank's words, on a cache line of their own.
STATE, POSITION, ANSWER, NOTICE, AT = range(256, 261)


def page_path(board_path: str) -> str:
    """The page of the rank with this board."""
    return board_path + SUFFIX


def private_words() -> memoryview:
    """Memory like a page, which nobody else sees."""
    return memoryview(bytearray(SIZE)).cast("q")


def answer_word(number: int, yes: bool) -> int:
    """A rank's answer to the proposal with this number, as it stands on the page."""
    return number << 1 | yes


def view(words: memoryview, rank: int, *, gone: bool) -> RankView:
    """What the rank's words say now. Its answer is read before its position, which it writes after it."""
    state, answered, at = words[STATE], words[ANSWER], words[AT]
    return RankView(rank, state, words[POSITION], at, answered >> 1, bool(answered & 1), gone)


def write(words: memoryview, word: Word) -> None:
    """Put the leader's word on the page."""
    if word.kind == WITHDRAW:
        words[WITHDRAWN] = word.number
    words[PLACES + word.number % SLOTS] = word.place
    words[NUMBER] = word.number
    if word.kind == COMMIT:
        words[COMMITTED] = word.number


class PageFile:
    """A mapped page: `words`. With `held`, this process is the only one that holds it so (the rank's side).

    Raises BoardError when the file is no page of this version and this user's, or another process holds it;
    FileNotFoundError when there is none.
    """

    def __init__(self, path: str, *, held: bool = False) -> None:
        self._fd = -1
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                self.words = _mapped(path, handle)
                if held:
                    _hold(path, handle)
                    self._fd, handle = handle, -1
            finally:
                if handle >= 0:
                    os.close(handle)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BoardError(f"{path}: no page for an agreed stop: {error.strerror or error}") from error

    @classmethod
    def create(cls, path: str) -> PageFile:
        """A fresh page, allocated in full; the file is 0600. Raises OSError when it cannot be made, BoardError when it
        cannot be mapped."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, SIZE)
            os.pwrite(handle, MAGIC.to_bytes(8, "little"), MAGIC_WORD)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(handle)
        try:
            return cls(path)
        except BoardError:  # a rank that found it would ask where nobody answers
            os.unlink(path)
            raise

    def close(self) -> None:
        """Let go of the page. The memory is unmapped when the last view of it is dropped, so that no thread that
        still looks at it fails. Safe to call twice."""
        self.words = private_words()
        handle, self._fd = self._fd, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        handle, self._fd = getattr(self, "_fd", -1), -1
        if handle >= 0:
            os.close(handle)


def _mapped(path: str, handle: int) -> memoryview:
    size = check_file(path, handle)
    if size != SIZE:
        raise BoardError(f"{path}: no page for an agreed stop: {size} bytes found, {SIZE} expected")
    if os.pread(handle, 8, MAGIC_WORD) != MAGIC.to_bytes(8, "little"):
        raise BoardError(f"{path}: no page for an agreed stop of this version of holdfast")
    return memoryview(mmap.mmap(handle, SIZE)).cast("q")


def _hold(path: str, handle: int) -> None:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError as error:
        raise BoardError(
            f"{path}: another process of this rank takes part already; process {os.getpid()} (a child of it?) does not"
        ) from error
    except PermissionError as error:  # what some filesystems say instead
        raise BoardError(f"{path}: another process of this rank takes part already") from error
    except OSError:
        pass  # a filesystem without locks: only the protection against two processes is missing
