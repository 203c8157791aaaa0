"""A writer that never blocks: blocks of whole lines wait in a bounded queue, and a thread appends them to a target.

A target is a stream that is there already (standard error), or a file that may be on a slow, full or hung disk and
that other launchers append to as well.

What always holds: `put` neither waits for the target (unless it is asked to) nor raises. Blocks of one target keep
their order. A block that does not fit into the queue is lost as a whole; its lines are counted, and the target has
a line with that number once it takes lines again. A file consists of whole lines: what a full disk cut off is taken
back, and written again later.
Several launchers append under a lock of the file, since NFS has no atomic append.
Does not cover: a filesystem without such locks on which appending is not atomic (NFS with `nolock` or `local_lock`),
nor one whose lock another launcher holds for more than `LOCK_WAIT`: two nodes may then overwrite each other's lines.
A filesystem whose calls even SIGKILL cannot end: the thread is left behind, but the process ends only with the call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

PREFIX = "[holdfast] "
CAPACITY = 16 << 20
"""Bytes in the queue."""
OVERHEAD = 128
"""Bytes that each block takes in addition to its lines."""
BATCH = 1 << 20
"""Bytes that are appended to a file at once."""
RETRY = 0.5
"""Seconds after an error of the disk."""
LOCK_WAIT, LOCK_POLL = 10.0, 0.005
"""Seconds."""
AT_THE_END = 1.0
"""Seconds in which the last lines are written when the launcher ends."""
PATIENCE = 2.0
"""Seconds without a block written after which a patient `put` does not wait any more."""


class Target:
    """Takes whole lines, in the writer's thread. `lost` is how many lines it lacks since the last note on that."""

    batch = 0
    """Bytes up to which blocks are joined; 0: each block by itself."""

    def __init__(self, name: str, why_lost: str) -> None:
        self.name, self.lost = name, 0
        self._why_lost = why_lost

    def take_note(self) -> bytes:
        """The line on what was lost since the last one."""
        lost, self.lost = self.lost, 0
        return f"{PREFIX}{lost} line{'s' * (lost > 1)} lost: {self._why_lost}\n".encode()

    def append(self, block: bytes) -> int:
        """Append whole lines; returns how many bytes of them are done with. Raises OSError where none is."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing follows."""


class Stream(Target):
    """A descriptor that other processes have too; what cannot be written to it is dropped.

    Args:
        descriptor: -1 for none.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__("standard error", "standard error was not read")
        self._descriptor = descriptor

    def append(self, block: bytes) -> int:
        """As in `Target`; each block is one write where the stream takes it."""
        rest = memoryview(block)
        while rest and self._descriptor >= 0:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process that has the same terminal or pipe made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # its reader is gone
                break
        return len(block)


class AppendedFile(Target):
    """A file that is opened with the first lines, and again after an error; never truncated to less than it had.

    Args:
        node: In the line on lost lines, as several nodes may share the file.
    """

    batch = BATCH

    def __init__(self, path: str, node: str) -> None:
        super().__init__(path, f"the disk did not take them (node {node})")
        self._path = path
        self._descriptor = -1

    def append(self, block: bytes) -> int:
        """As in `Target`."""
        try:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o666)
                self._locked(self._end_torn_line)
            return self._locked(lambda is_locked: self._append(block, is_locked=is_locked))
        except OSError:
            self.close()
            raise

    def _append(self, block: bytes, *, is_locked: bool) -> int:
        written = os.write(self._descriptor, block)
        if written == len(block):
            return written
        whole = block.rfind(b"\n", 0, written) + 1
        if is_locked:
            size = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, size - (written - whole))
        elif whole < written:
            self.close()  # others may have appended since: the next open ends the torn line
        if not whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole

    def _end_torn_line(self, is_locked: bool) -> None:
        """An earlier launcher may have been killed in the middle of a line."""
        found = os.fstat(self._descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size:
            if os.pread(self._descriptor, 1, found.st_size - 1) != b"\n":
                os.write(self._descriptor, b"\n")

    def _locked(self, work: Callable[[bool], int | None]) -> int:
        is_locked = self._lock()
        try:
            return work(is_locked) or 0
        finally:
            if is_locked and self._descriptor >= 0:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        until = time.monotonic() + LOCK_WAIT
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:  # held by another launcher, or not possible on this filesystem
                is_held = error.errno in (errno.EACCES, errno.EAGAIN)
            if not is_held or time.monotonic() > until:
                return False
            time.sleep(LOCK_POLL)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Writer:
    """The queue and its thread, for one target after the other.

    Args:
        on_trouble: Called once, with a target's name and the reason, when a line is lost or a disk returns an error.
            It must not wait.
    """

    def __init__(
        self, name: str, on_trouble: Callable[[str, str], object] | None = None, capacity: int = CAPACITY
    ) -> None:
        self._on_trouble, self._capacity = on_trouble, capacity
        self._changed = threading.Condition()
        self._blocks: deque[tuple[Target, bytes | None]] = deque()  # None: close the target
        self._in_hand: tuple[Target, bytes] | None = None  # what the thread writes now
        self._size = 0  # bytes of `_blocks` and `_in_hand`
        self._taken = self._done = 0  # blocks since the start
        self._moved_at = 0.0  # monotonic seconds: something was written, or the queue was empty
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, target: Target, block: bytes, *, is_patient: bool = False) -> None:
        """Have whole lines appended to the target. An empty block only opens it.

        Args:
            is_patient: Wait for room as long as the target takes lines, however slowly.
        """
        with self._changed:
            while is_patient and not self._has_room(block) and self._moves():
                self._changed.wait(0.1)
            is_lost = not self._has_room(block)
            if is_lost:
                target.lost += block.count(b"\n")
            else:
                self._note_loss(target)
                self._add(target, block)
        if is_lost:
            self._report(target, "it does not take lines as fast as they come")

    def end(self, target: Target) -> None:
        """Nothing follows for this target: close it once its blocks are written."""
        with self._changed:
            self._note_loss(target)
            self._add(target, None)

    def drain(self, seconds: float) -> bool:
        """Wait until everything so far is written, at most this long; returns whether it is."""
        with self._changed:
            until = self._taken
            if self._changed.wait_for(lambda: self._done >= until, seconds):
                return True
            target, _ = self._in_hand or self._blocks[0]
        self._report(target, f"it has not taken the last lines within {seconds:g} s")
        return False

    def close(self, seconds: float) -> None:
        """As `drain`, and end the thread; what is not written by then is lost."""
        is_done = self.drain(seconds)
        with self._changed:
            self._is_closed = True
            self._blocks.clear()
            self._changed.notify_all()
        if is_done:
            self._thread.join(seconds)

    # -- under the lock -----------------------------------------------------------------------------------------

    def _has_room(self, block: bytes) -> bool:
        return self._size + len(block) + OVERHEAD <= self._capacity

    def _moves(self) -> bool:
        return not self._is_closed and time.monotonic() - self._moved_at < PATIENCE

    def _note_loss(self, target: Target) -> None:
        if target.lost:
            self._add(target, target.take_note())

    def _add(self, target: Target, block: bytes | None) -> None:
        if not self._size:
            self._moved_at = time.monotonic()
        self._blocks.append((target, block))
        self._size += len(block or b"") + OVERHEAD
        self._taken += 1
        self._changed.notify_all()

    def _next(self) -> tuple[Target, bytes | None, int]:
        """Takes the next target and its next blocks out of the queue: joined, and how many they are."""
        target, block = self._blocks.popleft()
        if block is None:
            return target, None, 1
        found, size = [block], len(block)
        while self._blocks and size < target.batch:
            another, block = self._blocks[0]
            if another is not target or block is None:
                break
            found.append(block)
            size += len(block)
            self._blocks.popleft()
        return target, b"".join(found), len(found)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._blocks or self._is_closed)
                if not self._blocks:
                    return
                target, batch, count = self._next()
                self._in_hand = (target, batch or b"")
            if batch is None:
                target.close()
            else:
                self._write(target, batch)
            with self._changed:
                self._in_hand = None
                self._done += count
                self._size -= count * OVERHEAD
                if not self._blocks:
                    self._note_loss(target)
                self._changed.notify_all()

    def _write(self, target: Target, rest: bytes) -> None:
        """All of it, however long that takes; unless the writer is closed meanwhile."""
        while True:
            try:
                written = target.append(rest)
            except OSError as error:
                self._report(target, error.strerror or str(error))
                time.sleep(RETRY)
                if self._is_closed:
                    return
                continue
            rest = rest[written:]
            with self._changed:
                self._in_hand = (target, rest)
                self._size -= written
                self._moved_at = time.monotonic()
                self._changed.notify_all()
            if not rest:
                return

    def _report(self, target: Target, reason: str) -> None:
        with self._changed:
            report, self._on_trouble = self._on_trouble, None
        if report is not None:
            report(target.name, reason)
