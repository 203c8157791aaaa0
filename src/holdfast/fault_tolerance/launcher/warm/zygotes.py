"""Zygotes: the processes that import ahead, and from which standbys are forked.

The first one is started at the launcher's first moment and has imported nothing. Each part of the list of modules is
imported by a fork of the zygote that serves. When that has succeeded the fork serves in its place; when it has not, the
fork is ended, and the module that was to blame is left out. So a failure costs one fork, and a list that is learned
while training runs needs no second import of torch.

What always holds: whatever fails, ranks start cold, which is logged once for each job; nothing here waits, but for
:meth:`Zygotes.until_ready` before the first ranks and for forks, `FORKS` seconds at most.
Does not cover: what a standby does before it is a rank; it is our own code.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..inbox import Inbox, Interrupted
from ..ranks.rank_environment import with_prologue
from .forked import FORKS, Forked, Standby, Zygote
from .plan import Learned, Plan
from .zygote import wire
from .zygote.preload import Entry, is_below, roots, wanted

logger = logging.getLogger("holdfast.launcher")
Record = Callable[..., object]
BEGINS = 5
"""Checks, one a second, within which a zygote has begun, and forked."""
CRASHES = {
    -number
    for number in (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGABRT,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
    )
}
"""Statuses of a process that ended by a fault of its own; another signal came from outside."""
LEFT_OUT = 50
"""Modules in one job that may turn out to be unfit."""
PAUSE, LONGEST_PAUSE = 30.0, 3600.0
"""Seconds before a zygote that was lost for another reason is replaced; twice as long each time."""
PLACE_BYTES = 4096


class Zygotes:
    """The zygote that serves, and the one that imports the next part of the list.

    Args:
        plan: How to start the first one.
        learned: What to import, and what not.
        changed: Called when a module was left out.
    """

    def __init__(self, plan: Plan, learned: Learned, changed: Callable[[], None]) -> None:
        self.plan = plan
        self._learned, self._changed = learned, changed
        self._installed = roots()
        self._serving: Zygote | None = None
        self._coming: Zygote | None = None
        self._parts: list[list[Entry]] = []  # of the list, not imported yet
        self._asked: tuple[socket.socket, int | None] | None = None
        """Of the process that is being forked our end of its gate, and the file with the part that it imports."""
        self._waits = 0  # checks since then
        self._fresh: Standby | None = None  # that was forked last
        self._inbox: Inbox | None = None
        self._record: Record = lambda *_, **__: None
        self._replaced: Callable[[], None] = lambda: None
        self.names: list[str] = []
        """Packages that standbys have imported."""
        self._can_serve = False  # the one that serves has imported something, or there is nothing to import
        self.passing: dict[str, str] = {}
        """What this job does without, and why; the next job tries again."""
        self.failed: dict[str, str] = {}
        """Modules whose import raises, and what."""
        self._crashes: Counter[tuple[str, int]] = Counter()
        self._losses, self._next_attempt = 0, 0.0
        self._is_useless = False  # no other zygote would do better
        self._has_logged = False

    def begin(self) -> None:
        """Start the first one, and have it fork the one that imports; raises nothing."""
        self._parts = self._split(
            self._learned.modules if self._learned.modules is not None else self.plan.first
        )
        self._can_serve = not self._parts
        try:
            self._serving = self._start()
        except OSError as error:
            self.log_cold(f"no process for it can be started: {error}")
            self._next_attempt = time.monotonic() + PAUSE
            return
        self._watch(self._serving)
        self._grow()

    def _start(self) -> Zygote:
        ours, theirs = socket.socketpair()
        settings = {"launcher": os.getpid(), "channel": theirs.fileno(), "signals": list(self.plan.signals)}
        given = dict(self.plan.environment)
        given["PYTHONPATH"] = with_prologue(given.get("PYTHONPATH"))
        given |= {"HOLDFAST_ZYGOTE": json.dumps(settings), "HOLDFAST_PLACE": " " * PLACE_BYTES}
        with theirs:
            channel = [theirs.fileno()]
            process = subprocess.Popen(self.plan.command, env=given, pass_fds=channel, start_new_session=True)
        return Zygote(process, ours)

    def attach(self, inbox: Inbox, record: Record, replaced: Callable[[], None]) -> None:
        """From now on their messages are taken wherever the launcher waits. `replaced` is called when another zygote
        serves: standbys of the one before have imported less."""
        self._inbox, self._record, self._replaced = inbox, record, replaced
        for zygote in self._all:
            self._watch(zygote)

    @property
    def _all(self) -> list[Zygote]:
        return [zygote for zygote in (self._serving, self._coming) if zygote]

    @property
    def pids(self) -> set[int]:
        """Their processes."""
        return {zygote.pid for zygote in self._all}

    @property
    def is_ready(self) -> bool:
        """Whether standbys can be forked."""
        return self._serving is not None and self._can_serve

    @property
    def _is_importing(self) -> bool:
        """Whether a fork imports, or is on the way."""
        return self._coming is not None or self._asked is not None

    def learn(self) -> None:
        """Import what was learned, too: in a fork, while the zygote serves."""
        self.settle()
        if (
            self._serving is None
        ):  # the next one imports it, or the one that imports now is followed by one that does
            if self._coming:
                self._parts[1:] = self._split(self._learned.modules or ())
            return
        if self._coming:
            self._drop(self._coming)
        self._parts = self._split(self._learned.modules or ())
        self._grow()

    def fork(self) -> Standby | None:
        """A fork of the zygote that serves; None where none is ready, or does not fork."""
        self.settle()
        if self.is_ready:
            with suppress(OSError):  # no descriptor: not now
                self._ask(None)
            self.settle()
        standby, self._fresh = self._fresh, None
        return standby

    def settle(self) -> None:
        """Wait for the process that is being forked, if there is one."""
        if self._asked and self._serving and not self._take_message(self._serving, FORKS):
            self._lose(self._serving, "it does not fork")

    def hold(self) -> None:
        """Ranks start: imports wait, so that these have the processors to themselves."""
        self.settle()
        if self._coming:
            self._take_message(self._coming, 0)  # it may be ready
        if self._coming:
            self._coming.hold()

    def release(self) -> None:
        """Training is steady again."""
        if self._coming:
            self._coming.release()

    def check(self, now: float) -> None:
        """To be called about once a second: one that is stalled is ended, one that was lost replaced."""
        for zygote in self._all:
            if zygote.is_stalled():
                self._ended(zygote, stalled=True)
        if self._asked and self._serving:
            self._waits += 1
            if self._waits > BEGINS:
                self._ended(self._serving, stalled=True)
        if not self._all and not self._is_useless and now >= self._next_attempt:
            self.begin()
        self._grow()

    def until_ready(self, seconds: float) -> None:
        """Before the first ranks: wait for the imports, which a cold start would have to do as well."""
        until = time.monotonic() + seconds
        while self._is_importing and (zygote := self._coming or self._serving):
            self._take_message(zygote, 1.0)
            self.check(time.monotonic())
            if self._is_importing and time.monotonic() > until:
                self.log_cold(f"imports take longer than {seconds:g} s")
                return

    # -- what becomes of them ---------------------------------------------------------------------------------

    def _split(self, modules: Sequence[Entry]) -> list[list[Entry]]:
        """The list as one part; none if there is nothing to import."""
        without = {*self._learned.refused, *self.passing}
        part = wanted([*modules, *((name, None) for name in self.plan.preload)], without, self._installed)
        return [part] if part else []

    def _grow(self) -> None:
        """Have the next part imported, by a fork of the zygote that serves."""
        if (
            self._parts
            and self._serving
            and not self._is_importing
            and time.monotonic() >= self._next_attempt
        ):
            with suppress(OSError):  # no descriptor, or no memory: not now
                self._ask(self._parts[0])

    def _ask(self, part: list[Entry] | None) -> None:
        """Have a standby forked, or a process that imports: it gets its role at once, as the launcher may be busy."""
        assert self._serving is not None
        ours, theirs = socket.socketpair()
        with theirs:
            file = (
                None if part is None else wire.write_list(part)
            )  # last: its descriptor has an owner at once
            ours.settimeout(FORKS)
            self._asked, self._waits = (ours, file), 0
            try:
                wire.send(self._serving.channel, {}, [theirs.fileno()])
                if file is not None:
                    wire.send(ours, {"role": "zygote"}, [file])
            except OSError:
                self._ended(self._serving)

    def _watch(self, zygote: Zygote) -> None:
        def take() -> None:
            self._take_message(zygote, 0)

        if self._inbox:
            self._inbox.watch(zygote.channel.fileno(), take)

    def _take_message(self, zygote: Zygote, seconds: float) -> bool:
        """Wait so long for its message, and act on it; whether there was one. What goes wrong here ends no job."""
        if zygote not in self._all or not zygote.is_readable(seconds):
            return False
        try:
            try:
                found = wire.receive(zygote.channel)
            except OSError:
                found = None
            if found is None:
                self._ended(zygote)
            else:
                self._act(zygote, found[0])
        except Interrupted:
            raise
        except Exception as error:
            self._lose(zygote, repr(error))
        return True

    def _act(self, zygote: Zygote, message: dict[str, Any]) -> None:
        if "forked" in message and self._asked is not None:
            (gate, file), self._asked = self._asked, None
            if file is None:
                self._fresh = Standby(message["forked"], gate)
            else:
                self._coming = Zygote(Forked(message["forked"]), gate, file)
                self._watch(self._coming)
        elif "ready" in message:
            self._promote(zygote, message)
        elif "refused" in message:
            self._drop(zygote)
            self._leave_out(wire.ALL, message["refused"], self._learned.refused)
        elif module := zygote.importing:
            self._drop(zygote)
            self._leave_out(module, str(message.get("failed")), self.passing)
        else:
            self._lose(zygote, str(message.get("failed")))

    def _promote(self, zygote: Zygote, message: dict[str, Any]) -> None:
        """It has imported its part, and serves from now on."""
        before, self._serving, self._coming = self._serving, zygote, None
        if before:
            self._drop(before)
        zygote.imported()
        self._parts.pop(0)
        self._can_serve, self.names = True, message["ready"]
        self.failed |= message["failed"]
        for name in self.plan.preload:
            if why := message["failed"].get(name):
                logger.warning("--ft-preload %s: it cannot be imported (%s)", name, why)
        if not self._parts:
            self._record("warm_start", state="ready", packages=len(self.names))
            self._replaced()
        self._grow()

    def _ended(self, zygote: Zygote, *, stalled: bool = False) -> None:
        """It is stalled, or was killed, or has ended by itself."""
        module = zygote.importing
        if stalled and zygote.is_stopped:
            self._lose(zygote, "it is stopped")
            return
        if not module:
            self._lose(zygote, "it does not fork" if stalled else "it ended")
            return
        self._drop(zygote)
        status = zygote.process.returncode
        if stalled:
            self._leave_out(module, "its import makes no progress", self.passing)
        elif status is not None and (status >= 0 or status in CRASHES):
            self._crashes[module, status] += 1
            if status >= 0 or self._crashes[module, status] > 1:
                self._leave_out(module, "the interpreter ends while it is imported", self.passing)
            else:
                self._grow()
        else:
            self._lose(zygote, "it ended")

    def _leave_out(self, name: str, why: str, reasons: dict[str, str]) -> None:
        """Continue without this module; `ALL` is one of the part, which is found by halves."""
        part = self._parts.pop(0)
        if name == wire.ALL and len(part) > 1:
            half = len(part) // 2
            self._parts[:0] = [part[:half], part[half:]]
            self._grow()
            return
        name = str(part[0][0]) if name == wire.ALL else name
        reasons[name] = why
        self._record("warm_start", state="refused", module=name, reason=why)
        logger.warning("warm start: %s is not imported ahead: %s", name, why)
        self._changed()
        at = next((at for at, entry in enumerate(part) if is_below(str(entry[0]), {name})), len(part))
        parts = [wanted(each, {name}, self._installed) for each in (part[:at], part[at:], *self._parts)]
        self._parts = [each for each in parts if each and name != "torch"]
        if len(self._learned.refused) + len(self.passing) > LEFT_OUT:
            self.log_cold(f"more than {LEFT_OUT} modules cannot be imported ahead")
            self._parts.clear()
        if not self._parts:
            self._can_serve = self._serving is not None
            self._replaced()
        self._grow()

    def _lose(self, zygote: Zygote, why: str) -> None:
        """This one does not work, or no longer: it is replaced, at once if it was the first and had not served."""
        was_serving = zygote is self._serving
        had_served = was_serving and self._can_serve
        self._drop(zygote)
        pause = min(PAUSE * 2.0**self._losses, LONGEST_PAUSE) if self._losses or had_served else 0.0
        self._next_attempt = time.monotonic() + pause
        self._losses += 1
        self._record("warm_start", state="ended", reason=why)
        if was_serving:
            # It ended by itself before it has forked: so would the next one.
            status = zygote.process.returncode
            self._is_useless = not had_served and not self._coming and status is not None and status >= 0
            self._can_serve = False
            self.log_cold(f"its zygote (pid {zygote.pid}) is lost: {why}")

    def log_cold(self, why: str) -> None:
        """Why ranks start cold, once for each job."""
        if not self._has_logged:
            self._has_logged = True
            logger.warning("warm start: %s. Ranks start cold", why)

    def _drop(self, zygote: Zygote) -> None:
        if self._inbox and zygote.channel.fileno() >= 0:
            self._inbox.ignore(zygote.channel.fileno())
        zygote.end()
        if zygote is self._serving:
            self._serving = None
            if self._asked is not None:
                (gate, file), self._asked = self._asked, None
                gate.close()
                if file is not None:
                    os.close(file)
        if zygote is self._coming:
            self._coming = None

    def close(self) -> None:
        """End all."""
        self._parts.clear()
        for zygote in self._all:
            self._drop(zygote)
