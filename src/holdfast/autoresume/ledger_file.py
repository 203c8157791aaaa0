"""What a chain of attempts writes and reads: its ledger, its log lines, and the journals that tell of an attempt.

The ledger is `attempts.jsonl` in the run directory, a JSON object per line.

What always holds: a record is appended by one write and synced before `append` returns, so it survives a power cut;
a line that was torn (a full disk, SIGKILL, a power cut) is passed over by the reader, and the next record begins on a
line of its own. `append` never raises for a disk that does not take it: the record waits in memory and is written
with the next one, and a log line reports it. `read_account` never raises either.

Does not cover: two writers at once (see `lock`); a filesystem that never answers is given `ANSWER` seconds each time;
a standard error that is a pipe without a reader blocks, as it does the command's own output.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..fault_tolerance.errors import HoldfastError
from ..in_time import TooLate, within
from ..journal.reader import JournalUnreadable, journal_files, read_run
from ..visible import escaped
from .ledger import Ledger, Record
from .outcome import Account, account_of

NAME = "attempts.jsonl"

ANSWER = 20.0
"""Seconds that the filesystem may take for one call."""

KILLED = (
    "The training continues, and so does the count of failures; but if this process is killed, its successor does not "
    "know of these attempts"
)
"""What follows where one process keeps all attempts."""


class LedgerUnreadable(HoldfastError):
    """There is no ledger to read. The message is one line: where, why."""


def say(text: str) -> None:
    """One line on standard error, which may have no reader."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"[holdfast] {escaped(text)}\n")  # names of folders are anybody's
        sys.stderr.flush()


class LedgerFile:
    """The ledger of a run directory, for reading and appending. Nothing is opened between two calls."""

    def __init__(self, run_dir: str, unwritten: str = KILLED) -> None:
        """`unwritten`: what follows from a full disk, for people."""
        self.path = os.path.join(run_dir, NAME)
        self.ledger = Ledger()
        """What was read, and has been appended since, on disk or not."""
        self._unwritten = unwritten
        self._waiting: list[bytes] = []
        self._told = ""

    def read(self) -> Ledger:
        """What is in it, an empty one where there is no file. Raises `LedgerUnreadable`; torn lines are logged."""
        records, torn = read_records(self.path)
        if torn:
            lines = "line" if len(torn) == 1 else "lines"
            numbers = ", ".join(map(str, torn[:5])) + (", …" if len(torn) > 5 else "")
            count = "counts" if len(torn) == 1 else "count"
            say(
                f"warning: {self.path}: {lines} {numbers} cannot be read (torn when it was written?) and {count} "
                "for none"
            )
        self.ledger = Ledger.of(records)
        return self.ledger

    @property
    def lacks(self) -> bool:
        """Records wait that could not be written."""
        return bool(self._waiting)

    def append(self, record: Mapping[str, Any]) -> bool:
        """Append a record, after those that could not be written before; False when it has to wait. Never raises."""
        self.ledger = self.ledger.with_record(record)
        self._waiting.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        data = b"".join(self._waiting)
        try:
            within(ANSWER, lambda: _append(self.path, data))
        except TooLate:
            self._trouble(f"its filesystem has not answered for {ANSWER:g} s")
            return False
        except OSError as error:
            self._trouble(error.strerror or str(error))
            return False
        self._waiting.clear()
        if self._told:
            say(f"warning: {self.path} can be written again, and nothing is missing in it")
            self._told = ""
        return True

    def _trouble(self, why: str) -> None:
        if why != self._told:
            say(f"warning: {self.path} cannot be written: {why}. {self._unwritten}")
        self._told = why


def read_records(path: str) -> tuple[list[Record], list[int]]:
    """All records of a ledger, and the numbers of lines that are none; both empty without a file.

    Raises `LedgerUnreadable`.
    """
    try:
        lines = within(ANSWER, lambda: _lines(path))
    except TooLate:
        raise LedgerUnreadable(f"{path}: its filesystem has not answered for {ANSWER:g} s") from None
    except OSError as error:
        raise LedgerUnreadable(f"{path}: {error.strerror}") from None
    records, torn = [], []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line.strip():
            torn.append(number)
    return records, torn


def read_account(run_dir: str, since: float) -> Account:
    """What the journals tell of the attempt that began at `since`, unix seconds. Takes 2 × `ANSWER` at most."""
    try:
        return account_of(within(ANSWER, lambda: read_run(run_dir)), since)
    except TooLate:
        return Account(unread=True)
    except JournalUnreadable:
        # Without a journal nothing was started; one that cannot be read may tell of ranks.
        with suppress(JournalUnreadable, TooLate):
            return Account(unread=bool(within(ANSWER, lambda: journal_files(run_dir))))
        return Account()


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _lines(path: str) -> list[bytes]:
    try:
        # A pipe would be waited for until a process writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "a pipe has this name")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read().split(b"\n")
    finally:
        os.close(descriptor)


def _append(path: str, data: bytes) -> None:
    """All or, after an error, a torn line at most; the lines before it are untouched."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    made = not os.path.exists(path)
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) != len(data):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if made:
        _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    """A new file's name is on disk only when its folder is."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not every filesystem can
            raise
    finally:
        os.close(folder)
