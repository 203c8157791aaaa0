"""One chain for one run directory: the lock, and who keeps the chain.

The lock is on an empty file of its own, since some network filesystems keep readers out of a locked one. It is
flock(2): on NFS Linux makes it a lock of the server, so that it holds between machines.

What always holds: no process waits for the lock, and none works at the same time as its holder, or as a keeper that
the ledger names and that runs on this machine, even if the lock file was removed. A holder that was killed, or whose
machine has failed, blocks no other process once the filesystem knows (NFS: when its lease is over, about 90 s).

Does not cover: a filesystem without locks that two machines share. Each warns, and neither sees the other.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import time
from contextlib import AbstractContextManager, nullcontext, suppress

from ..fault_tolerance.errors import HoldfastError
from ..fault_tolerance.processes import proc
from ..in_time import TooLate, within
from .ledger import Ledger
from .ledger_file import LedgerFile, LedgerUnreadable, read_records, say

NAME = ".autoresume.lock"

ANSWER = 10.0
"""Seconds that the filesystem may take."""

LINGERS = 2.0
"""Seconds between the moments at which a process that was killed gives its locks back and at which it is gone."""


class Held(HoldfastError):
    """Another process has the lock. Who it is stands in the ledger."""


class Unlockable(HoldfastError):
    """The filesystem cannot lock, or has not answered. The message is one line: why."""


class Taken(HoldfastError):
    """Another process keeps a chain there. The message is one line: who, where."""


class Lock:
    """A lock that is held until `close` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take(run_dir: str, name: str = NAME) -> Lock:
    """Lock the run directory. Raises `Held`, and `Unlockable` where there is no telling."""
    path = os.path.join(run_dir, name)
    try:
        return Lock(within(ANSWER, lambda: _lock(path)))
    except BlockingIOError:
        raise Held(f"{run_dir} is taken") from None
    except TooLate:
        raise Unlockable(f"{path}: its filesystem has not answered for {ANSWER:g} s") from None
    except OSError as error:
        raise Unlockable(f"{path}: {error.strerror}") from None


def _lock(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        # Not fcntl's own locks: those of a process end when it closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def hold(run_dir: str) -> AbstractContextManager[object]:
    """Keep other keepers out of the run directory while the context is open. Raises `Taken`."""
    file = LedgerFile(run_dir)
    look = f"Look at it: holdfast autoresume --status {shlex.quote(run_dir)}"
    try:
        held = take(run_dir)
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
                raise Taken(f"{_named(file)} lives, though {NAME} is free: was that file removed? {look}")
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


def _named(file: LedgerFile) -> str:
    try:
        chain = file.read().chain
    except LedgerUnreadable:
        chain = None
    if chain is None or chain.ended or chain.pid is None or chain.job:
        return "another holdfast autoresume"
    return f"another holdfast autoresume (pid {chain.pid} on {chain.host})"
