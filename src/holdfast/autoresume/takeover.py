"""After a keeper was killed: its attempt got SIGTERM from the kernel and may still be saving. We wait for its end.

What always holds: the command is not signalled a second time, or a program would save twice; only what it leaves behind
is asked to end, since a script may not have passed the signal on. Nobody is signalled that was not started by that
attempt: processes are found by the mark in their environment, and signalled by pidfd.

Does not cover: an attempt of another machine; its processes cannot be seen from here.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.processes import kill, proc
from ..fault_tolerance.processes.kill import send_verified
from .command import left_by
from .ledger import Attempt
from .log import listed, say, say_undead
from .policy import duration
from .run import LOOK, PATIENCE, STOP_PATIENCE
from .signals import STOPS, Signals


class Cancelled(Exception):
    """Somebody told us to end, and no attempt of ours runs."""

    def __init__(self, number: signal.Signals, left: str = "") -> None:
        super().__init__(number.name)
        self.number = number
        self.left = left
        """What is still running, for people: a killed keeper's attempt that nobody waits for any more."""


def await_end(attempt: Attempt, signals: Signals) -> bool:
    """Wait until nothing of an attempt runs any more, at last by SIGKILL. Raises `Cancelled`.

    Whether anything ran: its end was seen then.
    """
    find = left_by(attempt.mark)
    if not (alive := find()):
        return False
    say(
        f"attempt {attempt.number}, whose keeper was killed, has not ended yet: waiting for {listed(alive)}, at most "
        f"{duration(STOP_PATIENCE)}; the kernel has sent SIGTERM to the command. To end it sooner: "
        f"kill -9 {' '.join(map(str, sorted(alive)))}"
    )
    until = time.monotonic() + STOP_PATIENCE
    ask_at = until if _is_there(attempt, alive) else 0.0
    while alive := find():
        now = time.monotonic()
        if now > until:
            say_undead(kill.end_all(find, orphans.GRACE, orphans.LIMIT)[1])
            return True
        if ask_at == until and not _is_there(attempt, alive):
            ask_at = now + PATIENCE  # what it leaves behind may end by itself
        if now >= ask_at:
            _ask(alive)
            ask_at = math.inf
        number = signals.wait(now + LOOK)
        if number in STOPS:
            raise Cancelled(
                number, f"attempt {attempt.number} is not waited for and still runs: {listed(alive)}"
            )
    return True


def _is_there(attempt: Attempt, alive: Mapping[int, int]) -> bool:
    """The command itself runs: the process to which the kernel sends SIGTERM when its keeper dies."""
    if attempt.pid is None:  # the keeper died before it could note it: the command leads a session of its own
        stats = proc.all_stats()
        return any(pid in stats and stats[pid].session == pid for pid in alive)
    return attempt.pid in alive and alive[attempt.pid] == attempt.started


def _ask(alive: Mapping[int, int]) -> None:
    """SIGTERM for those above the others: the kernel has told only the command."""
    stats = proc.all_stats()
    for pid, started in alive.items():
        if pid in stats and stats[pid].ppid not in alive:
            send_verified(pid, started, signal.SIGTERM)
