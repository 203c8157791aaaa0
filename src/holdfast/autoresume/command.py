"""One attempt as a process, from its start to the end of its last process; and the signals that we get meanwhile.

The command leads a session of its own, so that a Ctrl-C reaches it once, from us. It gets SIGTERM from the kernel when
we die. We are the subreaper of what it starts.

What always holds: when an attempt is over, nothing of it runs that SIGKILL can end. Who cancels gives it time to save;
only a second Ctrl-C ends it at once, since schedulers repeat SIGTERM. The attempt of a killed keeper is not signalled a
second time, or a program would save twice; only what it leaves behind is asked to end. Signals wait until they are
asked for; one that was ignored when we were started stays ignored (nohup).

Does not cover: SIGKILL and SIGSTOP to us. A process that another user owns by then (set-uid); it is logged and left
running. A killed keeper's attempt on another machine; its processes cannot be seen from here. A keeper that is killed
while a thread of it writes to the ledger: the kernel tells the command at the end of the main thread, and may once
more at the end of that one.
"""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from ..fault_tolerance.launcher.ranks import orphans
from ..fault_tolerance.processes import kill, proc
from ..visible import escaped
from .ledger import Attempt
from .policy import duration
from .run_dir import say

PR_SET_PDEATHSIG = 1

MARK = "HOLDFAST_ATTEMPT_MARK"
"""In the environment of an attempt's processes: one value for each attempt, to find them by when we were killed."""

NUMBER = "HOLDFAST_ATTEMPT"
"""In the environment of an attempt's processes: its number, from 1."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Asks for the end of the attempt and of the chain."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""For the training's own ends, such as "save now and continue"."""

PATIENCE = 10.0
"""Seconds in which what an attempt left behind may end by itself; ft_launcher's monitor needs some after its death."""

STOP_PATIENCE = 1860.0
"""The same after the attempt was asked to end: a little more than ft_launcher gives ranks to save (--term-timeout)."""

LOOK = 0.1


class Signals:
    """Waits for signals, and for the end of children. In the main thread, before there is another one."""

    def __init__(self) -> None:
        wanted = {number for number in (*STOPS, *PASSED_ON) if signal.getsignal(number) != signal.SIG_IGN}
        self._wanted = wanted | {signal.SIGCHLD}
        self.mask: set[signal.Signals] = set()
        """What children get: the mask that we were started with."""

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Inside, these signals only answer `wait`."""
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children's exit codes would be lost
        self.mask = {
            signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, self._wanted)
        }
        try:
            yield
        finally:
            while signal.sigtimedwait(self._wanted, 0):
                pass  # one that came at the very end asks for what has happened anyway
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            if before is not None:
                signal.signal(signal.SIGCHLD, before)

    def wait(self, until: float) -> signal.Signals | None:
        """The next signal, SIGCHLD included; None when there was none until then (monotonic seconds)."""
        found = signal.sigtimedwait(self._wanted, max(0.0, until - time.monotonic()))
        return signal.Signals(found.si_signo) if found else None


class Command:
    """A running attempt."""

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], signals: Signals, number: int
    ) -> None:
        """Start it. Raises `OSError`."""
        libc, parent = ctypes.CDLL(None), os.getpid()

        def tie() -> None:
            # In the child, before exec; there are no locks that another thread could hold.
            os.setsid()  # and with it a process group
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask)

        # What is typed is for the user's shell.
        stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
        self._process = subprocess.Popen(list(words), env=dict(environ), stdin=stdin, preexec_fn=tie)
        self._signals, self._number = signals, number
        self.pid = self._process.pid
        self.started = proc.start_time(self.pid)
        self.cancelled_by: signal.Signals | None = None
        """The signal that cancelled the chain."""
        self._killed = False

    def watch(self) -> int:
        """Wait for its very end; returns its exit code, -n when signal n ended it, or will once the kernel lets go."""
        while (code := self.poll()) is None:
            if self._killed:
                return -signal.SIGKILL  # said already: even that has not ended it
            self._answer(self._signals.wait(time.monotonic() + 60.0))
        self._end_the_rest()
        return code

    def poll(self) -> int | None:
        """Its exit code, -n when signal n ended it; None while it runs. Collects others that have ended."""
        code = self._process.poll()
        orphans.reap(self._itself)
        return code

    @property
    def _itself(self) -> set[int]:
        return {self.pid} if self._process.returncode is None else set()

    def _answer(self, came: signal.Signals | None) -> None:
        if came in PASSED_ON:
            self._pass_on(came)
        elif came in STOPS and self.cancelled_by is None:
            self.cancelled_by = came
            say(
                f"{came.name}: passed on to attempt {self._number}, which may save and end; none will follow. "
                f"Ctrl-C{' once more' if came is signal.SIGINT else ''} ends it at once"
            )
            self._pass_on(came)
        elif came is signal.SIGINT:
            say(f"SIGINT again: attempt {self._number} is killed")
            self._pass_on(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(orphans.LIMIT)
            _say_undead(orphans.end_all(self._itself)[1] | self._itself)
            self._killed = True

    def _pass_on(self, number: int) -> None:
        """To its process group, as a terminal does; after its end to the processes that are left of it."""
        # As long as the group has a member, no other process gets its number.
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None or orphans.left(set()):
                os.killpg(self.pid, number)

    def _end_the_rest(self) -> None:
        until = time.monotonic() + (PATIENCE if self.cancelled_by is None else STOP_PATIENCE)
        told = False
        while left := orphans.left(set()):
            if time.monotonic() > until:
                say(
                    f"attempt {self._number} has ended; what it has left running is ended now: {listed(left)}"
                )
                _say_undead(orphans.end_all(set())[1])
                return
            if not told:
                say(f"attempt {self._number} has ended; waiting for what it has left running: {listed(left)}")
                told = True
            self._answer(self._signals.wait(time.monotonic() + LOOK))


class Cancelled(Exception):
    """A signal asked this process to end, and no attempt of its own runs."""

    def __init__(self, number: signal.Signals, left: str = "") -> None:
        super().__init__(number.name)
        self.number = number
        self.left = left
        """What is still running, for people: an attempt of a killed keeper, for which no process waits any more."""


def await_end(attempt: Attempt, signals: Signals) -> bool:
    """Wait until nothing of a killed keeper's attempt runs any more, at last by SIGKILL. Raises `Cancelled`.

    Its processes are found by the mark in their environment, and signalled by pidfd. Returns whether anything ran: its
    end was seen then.
    """
    find = partial(kill.marked, f"{MARK}={attempt.mark}".encode(), set())
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
            _say_undead(kill.end_all(find, orphans.GRACE, orphans.LIMIT)[1])
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
            kill.send_verified(pid, started, signal.SIGTERM)


def _say_undead(pids: Iterable[int]) -> None:
    """Processes that even SIGKILL does not end."""
    if left := sorted(pids):
        say(
            f"still there after SIGKILL (in the kernel, state D?): {listed(left)}. Continuing without waiting for it"
        )


def listed(pids: Iterable[int]) -> str:
    """`process 17`, `processes 17, 18, …`."""
    found = sorted(pids)
    names = ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
    return f"process{'es' if len(found) > 1 else ''} {names}"


def shown(command: Sequence[str]) -> str:
    """A command for people, as a shell would read it, not longer than a line or two."""
    text = escaped(shlex.join(command))
    return text if len(text) <= 200 else text[:199] + "…"
