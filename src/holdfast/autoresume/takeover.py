"""After a keeper was killed: its attempt got SIGTERM from the kernel and may still be saving. We wait for its end.

What always holds: nobody is signalled that was not started by that attempt: processes are found by the mark in their
environment, and signalled by pidfd.

Does not cover: an attempt of another machine; its processes cannot be seen from here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.processes import proc, sweep
from ..fault_tolerance.processes.pidfd import send_verified
from .command import left_by
from .ledger import Attempt
from .log import listed, say, say_undead
from .run import LOOK, STOP_PATIENCE
from .signals import STOPS, Signals


class Cancelled(Exception):
    """Somebody told us to end, and no attempt of ours runs."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def await_end(attempt: Attempt, signals: Signals) -> None:
    """Wait until nothing of an attempt runs any more, at last by SIGKILL. Raises `Cancelled`."""
    find = left_by(attempt.mark)
    if not (alive := find()):
        return
    say(f"attempt {attempt.number}, whose keeper was killed, has not ended yet: waiting for {listed(alive)}")
    _ask(alive)
    until = time.monotonic() + STOP_PATIENCE
    while find():
        if time.monotonic() > until:
            say_undead(sweep.end_all(find, orphans.GRACE, orphans.LIMIT)[1])
            return
        number = signals.wait(time.monotonic() + LOOK)
        if number in STOPS:
            raise Cancelled(number)


def _ask(alive: Mapping[int, int]) -> None:
    """SIGTERM for those above the others. The kernel has told the command itself, but a script may not pass it on."""
    stats = proc.all_stats()
    for pid, started in alive.items():
        if pid in stats and stats[pid].ppid not in alive:
            send_verified(pid, started, signal.SIGTERM)
