"""Who keeps the chain of a run directory: one process at a time.

What always holds: nobody works beside whoever has the lock, nor beside a keeper that the ledger names and that lives
on this machine: a lock file that somebody removed locks nobody out.

Does not cover: a filesystem without locks that two machines share. Each warns, and neither sees the other.
"""

from __future__ import annotations

import shlex
import socket
import time
from contextlib import AbstractContextManager, nullcontext

from ..fault_tolerance.errors import HoldfastError
from ..fault_tolerance.processes import proc
from . import lock
from .ledger import Ledger
from .ledger_file import LedgerFile, LedgerUnreadable, read_records
from .log import say
from .table import GONE, Now, keeper

LINGERS = 2.0
"""Seconds between the moments at which a process that was killed gives its locks back and at which it is gone."""


class Taken(HoldfastError):
    """Another process keeps a chain there. The message is one line: who, where."""


def hold(run_dir: str, file: LedgerFile) -> AbstractContextManager[object]:
    """Keep others out of the run directory while the context is open. Raises `Taken`."""
    look = f"Look at it: holdfast autoresume --status {shlex.quote(run_dir)}"
    try:
        held = lock.take(run_dir)
    except lock.Held:
        raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
    except lock.Unlockable as error:
        if is_kept(file.read()):
            raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
        say(f"warning: no lock for {run_dir} ({error}): make sure that no other machine works in it")
        return nullcontext()
    try:
        _beside_nobody(file, look)
    except BaseException:
        held.close()
        raise
    return held


def _beside_nobody(file: LedgerFile, look: str) -> None:
    """Raise `Taken` where a keeper lives that has not the lock, and not because it is just dying."""
    until = time.monotonic() + LINGERS
    while is_kept(Ledger.of(read_records(file.path)[0])):
        if time.monotonic() > until:
            raise Taken(f"{_named(file)} lives, though {lock.NAME} is free: was that file removed? {look}")
        time.sleep(0.05)


def is_kept(ledger: Ledger) -> bool | None:
    """Whether the keeper of the last chain is alive; None where only its own machine knows."""
    chain = ledger.chain
    if chain is None or chain.ended:
        return False
    if chain.pid is None or chain.host != socket.gethostname():
        return None
    return chain.started is not None and proc.is_running(chain.pid, chain.started)


def now(ledger: Ledger) -> Now:
    """How the last chain stands, as far as can be told from here."""
    if is_kept(ledger) is False or ledger.chain is None:
        return GONE
    who = f" ({keeper(ledger.chain)})" if ledger.chain.pid else ""
    return Now(f"goes on{who}", attempt="runs")


def _named(file: LedgerFile) -> str:
    try:
        chain = file.read().chain
    except LedgerUnreadable:
        chain = None
    if chain is None or chain.ended or chain.pid is None or chain.job:
        return "another holdfast autoresume"
    return f"another holdfast autoresume (pid {chain.pid} on {chain.host})"
