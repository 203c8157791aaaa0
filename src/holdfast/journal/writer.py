"""The writing end of a node's journal: events go into a queue, a thread of its own writes them to the run directory.

What always holds: `record` neither waits for the disk nor raises, so a full disk, a vanished folder or a network
filesystem that hangs costs records, never supervision; it may be called from any thread and from a signal handler.
Each record is appended by one write, so lines of two writers never mix. The first problem is a line on standard error.

Does not cover: a power failure (nothing is synced: what the kernel has is safe from any end of this process only),
and filesystems whose calls even SIGKILL cannot end (some FUSE servers once a request is under way): there the thread
is left behind, but the kernel lets the process go only when the call returns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .event import encode

CAPACITY = 4096
"""Records that wait while the disk does not take them. Later ones are lost."""

UNANSWERED = 10.0
"""Seconds that one write may take before the run directory is reported to hang."""

PREFIX, SUFFIX = "journal-", ".jsonl"
NEWEST = "newest-"
"""How the file begins that has one event, the newest `progress` of a launcher that runs or was killed."""


MOST_SHOWN = 1 << 16
"""Bytes of such an event that are read."""


def _newest(journal: str) -> str:
    """The name of the file of `show` of this journal, up to the pid."""
    return NEWEST + journal.removeprefix(PREFIX).removesuffix(SUFFIX)


def file_name(node: str) -> str:
    """The name of a node's journal in the run directory."""
    return PREFIX + (re.sub(r"[^A-Za-z0-9._-]", "_", node) or "_") + SUFFIX


class Journal:
    """The journal of one node, for appending. Nothing is opened, and no thread runs, before the first record."""

    def __init__(self, run_dir: str, node: str, capacity: int = CAPACITY) -> None:
        """`node` names the file, `journal-<node>.jsonl`, and is in each record; at most `capacity` records wait."""
        self.path = os.path.join(run_dir, file_name(node))
        self.node = node
        self._capacity = capacity
        # SimpleQueue, because its put is reentrant: a signal handler may record.
        self._queue: queue.SimpleQueue[bytes | Callable[[], bytes | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # around the start of the thread only
        self.on_record: Callable[[str, bytes], object] | None = None
        """Gets the kind and the line of each record, on the thread that records, and must return at once. Of one with
        deferred fields the line has the others."""
        self._closed = False
        self._shown = ""  # the file of `show`
        self._writing_since = 0.0  # monotonic seconds, 0 while the thread waits for records
        self._warned = threading.Lock()  # taken by the first warning and never released: two threads may try

    def record(self, kind: str, /, **fields: Any) -> None:
        """Note that something happened now. Never waits for the disk, never raises; after `close` it does nothing.

        Fields are what JSON can express; anything else is kept as its `repr`. A field called `node`, `t` or `mono`
        replaces the record's own, for an event about another node or of another time.
        """
        if self._closed:
            return
        when = {"t": time.time(), "mono": time.monotonic()}
        try:
            line = encode(kind, fields, node=self.node, **when)
        except Exception as error:  # another thread changed a value meanwhile, or an object's __str__ failed
            line = encode(kind, {"unrecordable": repr(error)}, node=self.node, **when)
        if self.on_record:
            self.on_record(kind, line)
        self._put(line)

    def defer(self, kind: str, /, make: Callable[[], Mapping[str, Any]], **fields: Any) -> None:
        """As `record`, with more fields that are large: they are made, and encoded, on the journal's own thread.

        The time is that of this call. Where `make` raises, nothing is written, and standard error has why.
        """
        if self._closed:
            return
        when = {"t": time.time(), "mono": time.monotonic()}
        if self.on_record:
            self.on_record(kind, encode(kind, fields, node=self.node, **when))
        self._put(
            lambda: encode(kind, {**when, **make(), **fields}, node=self.node, t=when["t"], mono=when["mono"])
        )

    def show(self, kind: str, /, **fields: Any) -> None:
        """As `record`, into a file of its own: each event replaces the one before, and `close` removes it."""
        if not self._closed:
            line = encode(kind, fields, t=time.time(), mono=time.monotonic(), node=self.node)
            self._put(lambda: self._replace(line))

    def _replace(self, line: bytes) -> None:
        folder, name = os.path.split(self.path)
        self._shown = os.path.join(folder, f"{_newest(name)}.{os.getpid()}{SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._shown, flags, 0o600)
        try:
            os.write(descriptor, line)
            os.ftruncate(descriptor, len(line))  # between the two a reader finds the line, and a torn one
        finally:
            os.close(descriptor)

    def _put(self, line: bytes | Callable[[], bytes | None]) -> None:
        if self._queue.qsize() >= self._capacity:
            self._warn("the disk does not take records as fast as they come; some are lost.")
            return
        self._queue.put(line)
        since = self._writing_since
        if since and time.monotonic() - since > UNANSWERED:
            self._warn(f"the filesystem has not answered for {UNANSWERED:g} s.")
        if self._thread is None:
            self._start()

    def close(self, timeout: float = 1.0) -> None:
        """Write what still waits, for at most `timeout` seconds; the rest is lost if the process ends."""
        self._closed = True
        thread = self._thread
        if thread is None:
            return
        self._queue.put(None)
        thread.join(timeout)
        if thread.is_alive():
            waiting = self._queue.qsize()
            self._warn(f"not written within {timeout:g} s, the last {waiting} records are lost.")

    def _start(self) -> None:
        # Without waiting: a signal handler may have interrupted the very thread that holds the lock.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-journal", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError as error:  # no thread to be had; tried again at the next record
            self._warn(f"{error}; records wait in memory.")
        finally:
            self._lock.release()

    def _run(self) -> None:
        file = _File(self.path)
        try:
            self._take_over(file)
            while (line := self._queue.get()) is not None:
                self._writing_since = time.monotonic()
                try:
                    if found := line if isinstance(line, bytes) else line():
                        file.append(found)
                except OSError as error:
                    self._warn(f"{error.strerror or error}.")
                except Exception as error:  # from what was deferred
                    self._warn(f"{type(error).__name__}: {error}.")
                self._writing_since = 0.0
        finally:
            file.close()
            if self._shown:
                with contextlib.suppress(OSError):
                    os.unlink(self._shown)

    def _take_over(self, file: _File) -> None:
        """Append what killed launchers of this node have left in files of `show`: a pid may come again."""
        folder, name = os.path.split(self.path)
        left = re.compile(re.escape(_newest(name)) + rf"\.\d+{re.escape(SUFFIX)}")
        with contextlib.suppress(OSError):
            for each in filter(left.fullmatch, os.listdir(folder)):
                path = os.path.join(folder, each)
                with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as newest:
                    line = newest.readline(MOST_SHOWN)
                if line.endswith(b"\n"):
                    file.append(line)
                os.unlink(path)

    def _warn(self, what: str) -> None:
        """Write the first warning to standard error, and nothing after it."""
        if not self._warned.acquire(blocking=False):
            return
        text = f"{self.path}: {what} Training and supervision continue; this is logged once."
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # standard error may be closed, or None
            sys.stderr.write(f"[holdfast] warning: journal {text}\n")
            sys.stderr.flush()


class _File:
    """The file, opened when it is needed and again after an error."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._torn = False

    def append(self, line: bytes) -> None:
        """Append the line by one write. On an error nothing of it counts, and the next line starts afresh."""
        if self._descriptor < 0:
            self._open()
        if self._torn:
            line = b"\n" + line
        self._torn = True  # until all of it is known to be there
        try:
            whole = os.write(self._descriptor, line) == len(line)
        except OSError:
            self.close()
            raise
        if not whole:
            self.close()
            raise OSError(errno.ENOSPC, "disk full in the middle of a record")
        self._torn = False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o600)
        # An earlier writer may have died in the middle of its last line.
        self._torn = self._torn or os.fstat(self._descriptor).st_size > 0

    def close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
