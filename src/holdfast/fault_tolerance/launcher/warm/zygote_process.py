"""One zygote as the launcher has it: started, listened to, asked for standbys, ended.

What always holds: it is a child of the launcher and ends with it, whatever happens to either. What it says is handed
over as events; only :meth:`ZygoteProcess.standby_now` and :meth:`ZygoteProcess.until_ready` wait, and never for long.
Does not cover: what a standby does before it is let through; it is our own code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...processes import proc
from ..ranks.prologue_path import with_prologue
from . import forked
from .forked import Forked
from .plan import Plan
from .zygote import wire
from .zygote.preload import Entry

ANSWERS = 2.0  # seconds within which a zygote that can fork has done so
LOOK = 0.1
COMES = 5.0  # seconds in which a zygote has begun
STANDS_STILL = 30.0  # seconds in which an import has used neither processor nor disk

STARTING, READY, GONE = "starting", "ready", "gone"


class Standby:
    """A process at its gate."""

    def __init__(self, pid: int, gate: socket.socket, command: Sequence[str]) -> None:
        self.process, self.gate = Forked(pid, command), gate

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def end(self) -> None:
        """It ends by itself when the gate is closed; this is for sure."""
        self.gate.close()
        forked.end(self.process)


class ZygoteProcess:
    """A zygote for this plan, importing `modules` but nothing of the packages `without`.

    `gently`: it rests for half of the time. Raises OSError if none can be started.
    """

    def __init__(
        self,
        plan: Plan,
        modules: Sequence[Entry],
        without: Sequence[str],
        signals: Sequence[int],
        *,
        gently: bool = False,
    ) -> None:
        self.plan = plan
        self._held = self.is_here = False  # `is_here`: it has said something, and so is a zygote
        self._began = time.monotonic()
        self.state = STARTING
        self.names: list[str] = []  # packages that it has imported, once it is ready
        self.told: dict[str, Any] = {}  # its last word
        self._asked: socket.socket | None = None  # our end of the gate of the standby that is being forked
        self._moved, self._sign = time.monotonic(), (-1, -1)
        self._note = os.memfd_create("note")
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(ANSWERS)
        with theirs:
            settings = {
                "launcher": os.getpid(),
                "channel": theirs.fileno(),
                "note": self._note,
                "modules": list(modules),
                "without": sorted(without),
                "signals": list(signals),
                "gently": gently,
            }
            self._process = self._start(settings, theirs.fileno())

    def _start(self, settings: dict[str, Any], channel: int) -> subprocess.Popen[bytes]:
        given = dict(self.plan.environment)
        given["PYTHONPATH"] = with_prologue(given.get("PYTHONPATH"))
        file = os.memfd_create("settings")  # the list of modules may be too long for the environment
        try:
            os.pwrite(file, json.dumps(settings).encode(), 0)
            return subprocess.Popen(
                self.plan.command,
                env={**given, "HOLDFAST_ZYGOTE": str(file)},
                pass_fds=[channel, self._note, file],
                start_new_session=True,
            )
        except OSError:
            self.channel.close()
            os.close(self._note)
            raise
        finally:
            os.close(file)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def importing(self) -> str:
        """The module that it is importing now."""
        return wire.noted(self._note)

    @property
    def is_asked(self) -> bool:
        """Whether a standby is being forked."""
        return self._asked is not None

    def ask(self) -> None:
        """Have it fork one standby."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return  # no descriptor to be had: not now
        ours.settimeout(ANSWERS)
        with theirs:
            try:
                wire.send(self.channel, {}, [theirs.fileno()])
            except OSError:
                ours.close()
                self._gone()
                return
        self._asked = ours

    def hear(self) -> Standby | None:
        """Take its next word; the standby that it has forked, if it has. Call it when the channel is readable."""
        try:
            message = wire.receive(self.channel)
        except OSError:
            message = None
        if message is None:
            self._gone()
            return None
        self.told = message[0]
        self.is_here = True
        if self.told["said"] == "ready":
            self.state, self.names = READY, self.told["names"]
            self.go_on()
        elif self.told["said"] == "forked" and self._asked is not None:
            gate, self._asked = self._asked, None
            return Standby(self.told["pid"], gate, self.plan.command)
        elif self.told["said"] == "end":
            self._gone()
        return None

    def standby_now(self) -> Standby | None:
        """Wait for the standby that is being forked, or for a new one."""
        if not self.is_asked:
            self.ask()
        if self.is_asked and self.is_readable(ANSWERS):
            return self.hear()
        return None

    def until_ready(self, until: float) -> bool:
        """Wait while it imports, until then (monotonic seconds) at most; whether it has come to an end with it."""
        while self.state == STARTING and time.monotonic() < until:
            if self.is_readable(LOOK):
                self.hear()
            elif self.stands_still(time.monotonic()):
                self.told = {"said": "end", "hung": self.importing}
                self._gone()
        return self.state != STARTING

    def lend(self, seconds: float) -> None:
        """The world stood still for so long: it does not count."""
        self._moved += seconds
        self._began += seconds

    def hold(self) -> None:
        """While ranks start, they have the processors to themselves: an import waits. Hear it before."""
        if self.state == STARTING and not self._held:
            self._held = True
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After :meth:`hold`."""
        if self._held:
            self._held, self._moved = False, time.monotonic()
            self._process.send_signal(signal.SIGCONT)

    def stands_still(self, now: float) -> bool:
        """Whether it imports and has done nothing for a while; call it now and then."""
        if self._held:
            return False
        if not self.is_here and now - self._began > COMES:
            return True  # whatever this process is, it is no zygote
        sign = _work(self.pid)
        if sign != self._sign:
            self._sign, self._moved = sign, now
        return self.state == STARTING and now - self._moved > STANDS_STILL

    def is_readable(self, seconds: float) -> bool:
        """Whether it says something within so many seconds."""
        poll = select.poll()  # descriptors may have high numbers
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(1e3 * seconds))

    def _gone(self) -> None:
        self.state = GONE
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def end(self) -> None:
        """Kill it. Standbys stay: they are the launcher's children."""
        self._gone()
        forked.end(self._process)
        if self.channel.fileno() >= 0:
            self.channel.close()
            os.close(self._note)


def _work(pid: int) -> tuple[int, int]:
    """What it has used so far: processor ticks, and bytes read and page faults that went to a disk (0 where that is
    not told)."""
    found = proc.stat(pid)
    if found is None:
        return 0, 0
    read = 0
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:
        read = int(file.readline().split()[1])
    return found.cpu_ticks, read + found.major_faults
