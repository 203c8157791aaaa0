"""The standbys of one node: how many there are, when they are made, and which zygote makes them.

What always holds: whatever fails here, ranks start cold, which is said once; and nothing here waits while ranks run.
Standbys are made when training is steady, one after the other; a rank that finds none is forked when it is needed.
Does not cover: how a rank's process is put in the place of torch's own (:mod:`.start`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from holdfast.in_time import TooLate, within

from ..inbox import Inbox
from .forked import Forked
from .learned import Learned
from .plan import Plan, hidden, unlike
from .zygote import wire
from .zygote.preload import Entry
from .zygote_process import GONE, READY, STARTING, Standby, ZygoteProcess

logger = logging.getLogger("holdfast.launcher")
Record = Callable[..., object]
REBUILDS = 12  # zygotes in a row that a module has refused
ATTEMPTS = 3  # zygotes that ended for another reason, in one job
PAUSE = 30.0  # seconds between two of these
GOES = 2.0  # seconds in which a standby that is let through has said so
FOLDER_ANSWERS = 0.5  # seconds


class Pool:
    """Zygote and standbys. They import what is `learned`, or `first` while that is not known, and `preload`; `changed`
    is called when a package was refused."""

    def __init__(
        self,
        plan: Plan,
        learned: Learned,
        first: Sequence[Entry],
        preload: Sequence[str],
        signals: Sequence[int],
        changed: Callable[[], None],
    ) -> None:
        self._plan, self._learned, self._first, self._preload = plan, learned, first, tuple(preload)
        self._signals, self._changed = signals, changed
        self._zygote: ZygoteProcess | None = None  # from which standbys are forked
        self._coming: ZygoteProcess | None = None  # which will take its place when it has imported
        self._standbys: list[Standby] = []
        self._inbox: Inbox | None = None
        self._record: Record = lambda *_, **__: None
        self._wanted = 0
        self._failures, self._next_attempt = 0, 0.0
        self._said = False
        self.refill = False

    # -- its processes ----------------------------------------------------------------------------

    @property
    def pids(self) -> set[int]:
        """Of everything here: no rank has left it behind."""
        self._settle()
        zygotes = {zygote.pid for zygote in (self._zygote, self._coming) if zygote}
        return zygotes | {standby.pid for standby in self._standbys}

    def _settle(self) -> None:
        """A process that is being forked has a pid that nobody knows yet: wait for it."""
        zygote = self._zygote
        if zygote and zygote.is_asked and (standby := zygote.standby_now()):
            self._standbys.append(standby)
        if zygote and zygote.is_asked:
            self._lost(zygote, "it does not answer")

    # -- the zygote -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first zygote; raises nothing."""
        self._zygote = self._new_zygote()

    def attach(self, inbox: Inbox, record: Record, wanted: int) -> None:
        """From now on what the zygote says is heard wherever the launcher waits; so many ranks are wanted."""
        self._inbox, self._record, self._wanted = inbox, record, wanted
        self._watch(self._zygote)

    def learn(self, learned: Learned) -> None:
        """Import this from now on: a new zygote does so while the old one serves."""
        self._learned = learned
        self._drop(self._coming)
        self._coming = self._new_zygote(gently=True)
        self._watch(self._coming)

    def _new_zygote(self, *, gently: bool = False) -> ZygoteProcess | None:
        try:
            known = self._first if self._learned.modules is None else self._learned.modules
            modules = [*known, *((name, None) for name in self._preload)]
            without = list(self._learned.refused)
            return ZygoteProcess(self._plan, modules, without, self._signals, gently=gently)
        except OSError as error:
            self._say(f"no process for it can be started: {error}")
            return None

    def _watch(self, zygote: ZygoteProcess | None) -> None:
        if zygote and self._inbox and zygote.state != GONE:
            self._inbox.watch(zygote.channel.fileno(), lambda: self._heard(zygote))

    def _heard(self, zygote: ZygoteProcess) -> None:
        if zygote.channel.fileno() < 0:
            return
        standby = zygote.hear()
        if standby:
            self._standbys.append(standby)
        self._follow(zygote)

    def _follow(self, zygote: ZygoteProcess) -> None:
        """Act on what this zygote has become."""
        if zygote.state == GONE:
            self._ended(zygote)
        elif zygote is self._coming and zygote.state == READY:
            self._drop(self._zygote)
            self._end_standbys()
            self._zygote, self._coming = zygote, None
            self._record("warm_start", state="ready", packages=len(zygote.names))
        elif zygote is self._zygote and zygote.state == READY:
            self._ask_for_more()

    def _ended(self, zygote: ZygoteProcess) -> None:
        """It refused a module, or failed, or was killed."""
        told = zygote.told if zygote.told.get("said") == "end" else {}
        self._drop(zygote)
        if "refused" in told:
            self._refused(told["refused"], told["why"], told["without"])
        elif "hung" in told:
            hung = told["hung"]
            self._refused(hung, "its import stands still", [hung.partition(".")[0]] if hung else [])
        else:
            self._lost(zygote, told.get("failed", "it ended"))

    def _refused(self, module: str, why: str, without: Sequence[str]) -> None:
        fresh = [name for name in without if name not in self._learned.refused]
        self._record("warm_start", state="refused", module=module, reason=why, without=list(without))
        self._learned.refused.update(dict.fromkeys(fresh, f"{module}: {why}"))
        self._failures += 1
        if not fresh or "torch" in without or self._failures > REBUILDS:
            self._say(f"{module} cannot be imported ahead ({why})")
            return
        logger.warning("warm start: %s is not imported ahead: %s", module or without[0], why)
        self._changed()
        self._start_again()

    def _start_again(self) -> None:
        zygote = self._new_zygote(gently=self._inbox is not None)
        if self._zygote is None:
            self._zygote = zygote
        else:
            self._coming = zygote
        self._watch(zygote)

    def _lost(self, zygote: ZygoteProcess, why: str) -> None:
        self._drop(zygote)
        self._failures += 1
        self._next_attempt = time.monotonic() + PAUSE
        self._record("warm_start", state="ended", reason=why)
        self._say(f"its zygote (pid {zygote.pid}) is lost: {why}")

    def _say(self, why: str) -> None:
        if not self._said:
            self._said = True
            logger.warning("warm start: %s. Ranks start cold", why)

    def _drop(self, zygote: ZygoteProcess | None) -> None:
        if zygote is None:
            return
        if self._inbox and zygote.channel.fileno() >= 0:
            self._inbox.ignore(zygote.channel.fileno())
        zygote.end()
        if zygote is self._zygote:
            self._zygote = None
        if zygote is self._coming:
            self._coming = None

    # -- standbys ---------------------------------------------------------------------------------

    def look(self, now: float, *, steady: bool) -> None:
        """Call it about once a second: standbys are made while training is `steady`, zygotes that are lost replaced."""
        for standby in [each for each in self._standbys if each.process.poll() is not None]:
            self._standbys.remove(standby)
            standby.end()
        for zygote in (self._zygote, self._coming):
            if zygote and zygote.stands_still(now):
                zygote.told = {"said": "end", "hung": zygote.importing}
                self._ended(zygote)
        if (
            self._zygote is None
            and self._coming is None
            and self._failures <= ATTEMPTS
            and now >= self._next_attempt
        ):
            if self._failures:
                self._start_again()
        if steady:
            self.refill = True
            for zygote in (self._zygote, self._coming):
                if zygote:
                    zygote.go_on()
        if self._zygote and self._zygote.state == READY:
            self._ask_for_more()

    def hold(self) -> None:
        """Ranks are about to start: nothing here takes a processor from them until training is steady again."""
        self.refill = False
        for zygote in (self._zygote, self._coming):
            if zygote:
                zygote.hold()

    def _ask_for_more(self) -> None:
        zygote = self._zygote
        if self.refill and zygote and not zygote.is_asked and len(self._standbys) < self._wanted:
            zygote.ask()

    def until_ready(self) -> None:
        """Before the first ranks: wait for the imports, which a cold start would have to do as well."""
        while (zygote := self._zygote) is not None and zygote.state == STARTING:
            zygote.until_ready()
            if zygote.state == GONE:
                self._ended(zygote)
            else:
                self._record("warm_start", state="ready", packages=len(zygote.names))

    def why_not(self) -> str:
        """Why no rank of this cycle can start warm ('' if some can)."""
        zygote = self._zygote
        if zygote is None or zygote.state != READY:
            return "no zygote is ready"
        if self._plan.folder is None:
            return ""
        try:
            there = within(FOLDER_ANSWERS, lambda: _entries(str(self._plan.folder)))
        except (OSError, TooLate) as error:
            return f"the script's folder cannot be listed ({error or 'it does not answer'})"
        if names := hidden(zygote.names, there):
            return f"{names[0]} in the script's folder hides the installed package of that name"
        return ""

    def take(
        self, command: Sequence[str], environment: Mapping[str, str], streams: Mapping[int, int]
    ) -> Standby | None:
        """Let a standby through as the rank with this command line, environment and output; None: start it cold."""
        zygote = self._zygote
        if zygote is None or tuple(command) != zygote.plan.command:
            return None
        given = dict(environment)
        if self._differs(given):
            return None
        while standby := self._next():
            try:
                message = {"environment": given, "streams": list(streams)}
                wire.send(standby.gate, message, list(streams.values()))
                return standby
            except OSError:
                standby.end()
        return None

    def _differs(self, given: dict[str, str]) -> bool:
        """Whether variables differ that may have been read; leaves in `given` what the prologue would leave."""
        path = self._plan.environment.get("PYTHONPATH")
        given.pop("PYTHONPATH", None)
        if path is not None:
            given["PYTHONPATH"] = path
        names = unlike(self._plan.environment, given)
        if names:
            self._say(f"the ranks' environment is another one than the launcher's ({', '.join(names[:3])})")
        return bool(names)

    def _next(self) -> Standby | None:
        while self._standbys:
            standby = self._standbys.pop(0)
            if standby.process.poll() is None:
                return standby
            standby.end()
        zygote = self._zygote
        if zygote is None or zygote.state != READY:
            return None
        found = zygote.standby_now()
        if found is None:
            self._lost(zygote, "it does not fork")
        return found

    def _end_standbys(self) -> None:
        while self._standbys:
            self._standbys.pop().end()

    def close(self) -> None:
        """End all of them."""
        self.refill = False
        self._end_standbys()
        self._drop(self._coming)
        self._drop(self._zygote)


def went(standby: Standby) -> Forked | None:
    """The rank that the standby has become; None, and it is ended, when it has not said so in time."""
    standby.gate.settimeout(GOES)
    with suppress(OSError):
        if standby.gate.recv(1):
            standby.gate.close()
            return standby.process
    standby.end()
    return None


def _entries(folder: str) -> dict[str, bool]:
    """What is in the folder; true for packages."""
    return {
        entry.name: entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py"))
        for entry in os.scandir(folder)
    }
