"""Who keeps the chain of a run directory: one process at a time.

What always holds: it is the lock that counts where there is one; what the ledger tells of the keeper only names it.

Does not cover: a filesystem without locks that two machines share. Each warns, and neither sees the other.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager, nullcontext

from ..fault_tolerance.errors import HoldfastError
from ..fault_tolerance.processes import proc
from . import lock
from .ledger import Ledger
from .ledger_file import LedgerFile, LedgerUnreadable
from .log import say


class Taken(HoldfastError):
    """Another process keeps a chain there. The message is one line: who, where."""


def hold(run_dir: str, file: LedgerFile) -> AbstractContextManager[object]:
    """Keep others out of the run directory while the context is open. Raises `Taken`."""
    look = f"Look at it: holdfast autoresume --status {run_dir}"
    try:
        return lock.take(run_dir)
    except lock.Held:
        raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
    except lock.Unlockable as error:
        if is_kept(file.read()):
            raise Taken(f"{_named(file)} is at work in {run_dir}. {look}") from None
        say(f"warning: no lock for {run_dir} ({error}): make sure that no other machine works in it")
        return nullcontext()


def is_kept(ledger: Ledger) -> bool | None:
    """Whether the keeper of the last chain is alive; None where only its own machine knows."""
    chain = ledger.chain
    if chain is None or chain.ended:
        return False
    if chain.pid is None or chain.host != socket.gethostname():
        return None
    return proc.start_time(chain.pid) == chain.started


def _named(file: LedgerFile) -> str:
    try:
        chain = file.read().chain
    except LedgerUnreadable:
        chain = None
    if chain is None or chain.ended or chain.pid is None:
        return "another holdfast autoresume"
    return f"another holdfast autoresume (pid {chain.pid} on {chain.host})"
