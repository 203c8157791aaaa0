"""What a chain of attempts has in its run directory: the ledger's file, the lock, the finished flag; and the log lines.

The ledger is `attempts.jsonl`, a JSON object per line. The lock is on an empty file of its own, since some network
filesystems keep readers out of a locked one. It is flock(2): on NFS Linux makes it a lock of the server, so that it
holds between machines. The finished flag is the file that exists once the training is finished;
FAULT_TOL_FINISHED_FLAG_FILE names it, and it may be elsewhere.

What always holds: a record is appended by one write and synced before `append` returns, so it survives a power cut;
a line that was torn (a full disk, SIGKILL, a power cut) is passed over by the reader, and the next record begins on a
line of its own. `append` never raises for a disk that does not take it: the record waits in memory and is written
with the next one, and a log line reports it. `read_account` never raises either.
No process waits for the lock, and none works at the same time as its holder, or as a keeper that the ledger names and
that runs on this machine, even if the lock file was removed. A holder that was killed, or whose machine has failed,
blocks no other process once the filesystem knows (NFS: when its lease is over, about 90 s).
A flag that may belong to this run directory is never removed, and one that cannot is never believed; only an empty
regular file is removed: another one may be a user's file, named by mistake. What is no regular file is no flag. A
filesystem that does not answer has none: one attempt too many does no harm.

Does not cover: a filesystem without locks that two machines share: each warns, and neither sees the other. A filesystem
that never answers is given `ANSWER` seconds each time; a standard error that is a pipe without a reader blocks, as it
does the command's own output. Who creates the flag; the Lightning callbacks with `autoresume=True` do, other programs
do it themselves.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..callbacks.completion import FLAG_VARIABLE
from ..checkpoints.atomic import flush
from ..fault_tolerance.errors import ConfigError, HoldfastError
from ..fault_tolerance.processes import proc
from ..in_time import TooLate, within
from ..journal.reader import JournalUnreadable, journal_files, read_run
from ..journal.run_dir import lock_file
from ..journal.writer import PREFIX, SUFFIX
from ..visible import escaped
from .ledger import Ledger, Record
from .outcome import Account, Kind, account_of

LEDGER, LOCK, FLAG = "attempts.jsonl", ".autoresume.lock", "finished.flag"
OF_SLURM = SLURM_LOCK, SLURM_JOB, SLURM_SCRIPT = ".slurm.lock", "slurm-job.json", "job.sbatch"
"""What `holdfast slurm` keeps in a run directory (`integrations.slurm`)."""

ANSWER = 20.0
"""Seconds that the filesystem may take for one call."""

LINGERS = 2.0
"""Seconds between the moments at which a process that was killed gives its locks back and at which it is gone."""

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
        self.path = os.path.join(run_dir, LEDGER)
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
        except (OSError, TooLate) as error:
            if (why := _why(error)) != self._told:
                say(f"warning: {self.path} cannot be written: {why}. {self._unwritten}")
            self._told = why
            return False
        self._waiting.clear()
        if self._told:
            say(f"warning: {self.path} can be written again, and nothing is missing in it")
            self._told = ""
        return True


def read_records(path: str) -> tuple[list[Record], list[int]]:
    """All records of a ledger, and the numbers of lines that are none; both empty without a file.

    Raises `LedgerUnreadable`.
    """
    try:
        lines = within(ANSWER, lambda: _lines(path))
    except (OSError, TooLate) as error:
        raise LedgerUnreadable(f"{path}: {_why(error)}") from None
    records, torn = [], []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
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
        flush(os.path.dirname(path))  # a new file's name is on the disk only when its folder is


# -- the lock


class Held(HoldfastError):
    """Another process has the lock. Who it is stands in the ledger."""


class Unlockable(HoldfastError):
    """The filesystem cannot lock, or has not answered. The message is one line: why."""


class Taken(HoldfastError):
    """Another process keeps a chain there. The message is one line: who, where."""


def take_lock(run_dir: str, name: str = LOCK) -> io.FileIO:
    """Lock the run directory, until the file is closed. Raises `Held`, and `Unlockable` where there is no telling."""
    path = os.path.join(run_dir, name)
    try:
        return io.FileIO(within(ANSWER, lambda: lock_file(path)))
    except BlockingIOError:
        raise Held(f"{run_dir} is taken") from None
    except (OSError, TooLate) as error:
        raise Unlockable(f"{path}: {_why(error)}") from None


def hold(run_dir: str) -> AbstractContextManager[object]:
    """Keep other keepers out of the run directory while the context is open. Raises `Taken`."""
    file = LedgerFile(run_dir)
    look = f"Look at it: holdfast autoresume --status {shlex.quote(run_dir)}"
    try:
        held = take_lock(run_dir)
    except Held:
        raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
    except Unlockable as error:
        if is_kept(file.read()):
            raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
        say(f"warning: no lock for {run_dir} ({error}): make sure that no other machine works in it")
        return nullcontext()
    until = time.monotonic() + LINGERS
    try:
        while is_kept(Ledger.of(read_records(file.path)[0])):  # it may be dying just now
            if time.monotonic() > until:
                raise Taken(f"{_named(file)} lives, though {LOCK} is free: was that file removed? {look}")
            time.sleep(0.05)
    except BaseException:
        held.close()
        raise
    return held


def is_kept(ledger: Ledger) -> bool | None:
    """Whether the keeper of the last chain is alive; None where only its own machine knows."""
    chain = ledger.chain
    if chain is None or chain.ended:
        return False
    if chain.pid is None or chain.host != socket.gethostname():
        return None
    return chain.started is not None and proc.is_running(chain.pid, chain.started)


@dataclass(frozen=True, slots=True)
class Now:
    """How a chain and an attempt stand whose ends are not in the ledger."""

    state: str
    """Empty: the keeper is gone, and the next one carries the chain on."""
    why: str = ""
    attempt: str = "-"
    """Its open attempt: `runs`, `over`, …"""


def now_here(ledger: Ledger) -> Now:
    """The state of the last chain, as far as it can be determined on this machine."""
    if is_kept(ledger) is False or ledger.chain is None:
        return Now("")
    return Now(f"continues{ledger.chain.keeper}", attempt="runs")


def _named(file: LedgerFile) -> str:
    try:
        chain = file.read().chain
    except LedgerUnreadable:
        chain = None
    if chain is None or chain.ended or chain.pid is None or chain.job:
        return "another holdfast autoresume"
    return f"another holdfast autoresume (pid {chain.pid} on {chain.host})"


# -- the finished flag


class Standing(Enum):
    """Whose flag it is that is there before an attempt."""

    NONE = "there is none"
    OURS = "an attempt of this run directory has finished the training"
    NO_MORE = "the last attempt has asked that no further one be made"
    STALE = "of another run: there was no attempt yet in this run directory that could have made it"


def flag_path(environ: Mapping[str, str], run_dir: str) -> str:
    """What the user's environment names, else a file in the run directory; absolute.

    Raises `ConfigError` for the name of a file that is ours.
    """
    path = os.path.abspath(environ.get(FLAG_VARIABLE) or os.path.join(run_dir, FLAG))
    folder, name = os.path.split(path)
    journal = name.startswith(PREFIX) and name.endswith(SUFFIX)
    if folder == os.path.abspath(run_dir) and (journal or name in (LEDGER, LOCK, *OF_SLURM)):
        raise ConfigError(
            f"{FLAG_VARIABLE}={path}: {name} is a file of the run directory's own. Name another one"
        )
    return path


def flag_exists(path: str) -> bool:
    """Whether the training is finished."""
    with suppress(OSError, TooLate):
        return within(ANSWER, lambda: os.path.isfile(path))
    return False


def settle_flag(ledger: Ledger, path: str) -> Standing:
    """Whose flag is there, before a chain begins or is carried on: NONE, OURS or NO_MORE. A stale one is removed.

    Raises `ConfigError`, also where the training could not create it.
    """
    found = whose_flag(ledger, path, there=flag_exists(path))
    if found is Standing.STALE:
        remove_flag(path)
        say(
            f"removed {path}: it was there before the first attempt in this run directory, so another run made it"
        )
        found = Standing.NONE
    if found is Standing.NONE:
        check_flag(path)
    return found


def whose_flag(ledger: Ledger, path: str, *, there: bool) -> Standing:
    """What a flag at `path` means at the begin of a chain, or where one is continued."""
    if not there:
        return Standing.NONE
    made_by = [chain for chain in ledger.chains if chain.attempts and chain.flag in ("", path)]
    if not made_by:
        return Standing.STALE
    shut_down = ledger.attempts[-1].kind is Kind.SHUT_DOWN
    return Standing.NO_MORE if shut_down else Standing.OURS


def remove_flag(path: str) -> None:
    """Remove a stale flag. Raises `ConfigError`, also for a file that looks like no flag."""
    try:
        within(ANSWER, lambda: _refuse_foreign(path))
        within(ANSWER, lambda: os.unlink(path))
    except FileNotFoundError:
        pass
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{FLAG_VARIABLE}={path}: of another run, and cannot be removed: {_why(error)}"
        ) from None


def check_flag(path: str) -> None:
    """Raise `ConfigError` where the training could not create the flag. A full disk is not final, and no error.

    The same for a file that looks like no flag. One that is there and may be the run's own is not to be checked.
    """
    try:
        within(ANSWER, lambda: _refuse_foreign(path))
        within(ANSWER, lambda: _try(path))
    except (OSError, TooLate) as error:
        raise ConfigError(
            f"{FLAG_VARIABLE}={path}: the training could not create this file when it is finished: {_why(error)}"
        ) from None


def _refuse_foreign(path: str) -> None:
    """Flags are made by `touch`. A file with something in it was named by mistake, and a link may lead to one."""
    try:
        found = os.lstat(path)
    except OSError:
        return  # what follows reports it
    full = stat.S_ISREG(found.st_mode) and found.st_size
    if full or (stat.S_ISLNK(found.st_mode) and os.path.isfile(path)):
        what = f"has {found.st_size} bytes in it" if full else "is a symbolic link to a file"
        raise ConfigError(
            f"{FLAG_VARIABLE}={path}: was there before the first attempt and {what}, so it is left alone: a finished "
            "flag is an empty file that the training makes. Name another one, or remove it"
        )


def _try(path: str) -> None:
    with suppress(FileNotFoundError):
        os.stat(path)  # links that lead in a circle, say
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/null, say
        raise OSError(errno.EINVAL, "a device, pipe or socket has this name")
    probe = f"{path}.probe-{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return
    os.unlink(probe)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"its filesystem has not answered for {ANSWER:g} s"
