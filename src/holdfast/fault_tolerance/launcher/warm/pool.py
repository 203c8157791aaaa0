"""The standbys of one node: how many there are, when they are made, and who may take a rank's place.

What always holds: a rank that cannot be had from here starts cold. Standbys are made when training is steady, one
after the other; a rank that finds none is forked when it is needed.
Does not cover: zygotes (:mod:`.zygotes`), and how a rank's process is put in the place of torch's own (:mod:`.start`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.in_time import TooLate, within

from ..inbox import Inbox
from .forked import Forked, collect, dying
from .plan import hidden, unlike
from .zygote import wire
from .zygote_process import Standby
from .zygotes import Record, Zygotes

GOES = 2.0  # seconds in which a standby that is let through has said so
DEATHS = 3  # of standbys that waited, for each rank; then no more are made
FOLDER_ANSWERS = 0.5  # seconds


class Pool:
    """Standbys, forked from what `zygotes` has."""

    def __init__(self, zygotes: Zygotes) -> None:
        self.zygotes = zygotes
        self._standbys: list[Standby] = []
        self._wanted = 0
        self._refill = False
        self._deaths = 0
        self._record: Record = lambda *_, **__: None

    def attach(self, inbox: Inbox, record: Record, wanted: int) -> None:
        """From now on zygotes are heard wherever the launcher waits; so many ranks are wanted."""
        self._wanted, self._record = wanted, record
        self.zygotes.attach(inbox, record, self._forked, self._end_standbys)

    @property
    def pids(self) -> set[int]:
        """Of everything here: no rank has left it behind. One that is being forked is missing (:meth:`settle`)."""
        return self.zygotes.pids | {standby.pid for standby in self._standbys} | dying()

    def settle(self) -> None:
        """Make no more standbys, and wait for one that is being forked, whose pid is not known yet."""
        self.hold()
        zygote = self.zygotes.ready
        if zygote and zygote.is_asked:
            self._now()

    def _now(self) -> bool:
        """Have one more standby; whether there is one."""
        zygote = self.zygotes.ready
        if zygote is None:
            return False
        standby = zygote.standby_now()
        if standby is None:
            self.zygotes.lost(zygote, zygote.told.get("failed") or "it does not fork")
            return False
        self._standbys.append(standby)
        return True

    def _forked(self, standby: Standby) -> None:
        self._standbys.append(standby)
        self._ask_for_more()

    def _ask_for_more(self) -> None:
        zygote = self.zygotes.ready
        if self._refill and zygote and not zygote.is_asked and len(self._standbys) < self._wanted:
            zygote.ask()

    def look(self, now: float, *, steady: bool) -> None:
        """Call it about once a second: standbys are made while training is `steady`, what is lost is replaced."""
        collect()
        for standby in [each for each in self._standbys if each.process.poll() is not None]:
            self._standbys.remove(standby)
            standby.end()
            self._deaths += 1
            self._record(
                "warm_start", state="standby lost", pid=standby.pid, status=standby.process.returncode
            )
        if self._deaths > DEATHS * self._wanted:
            self._wanted = 0
            self.zygotes.say(f"{self._deaths} standbys have died while they waited")
        self.zygotes.look(now)
        if steady:
            self._refill = True
            self.zygotes.go_on()
        self._ask_for_more()

    def hold(self) -> None:
        """Ranks are about to start: nothing here takes a processor from them until training is steady again."""
        self._refill = False
        self.zygotes.hold()

    def why_not(self) -> str:
        """Why no rank of this cycle can start warm ('' if some can)."""
        if not self._standbys and self.zygotes.ready is None:
            return "no zygote is ready"
        folder = self.zygotes.plan.folder
        if folder is None:
            return ""
        try:
            there = within(FOLDER_ANSWERS, lambda: _entries(folder))
        except (OSError, TooLate) as error:
            return f"the script's folder cannot be listed ({error or 'it does not answer'})"
        if names := hidden(self.zygotes.names, there):
            return f"{names[0]} in the script's folder hides the installed package of that name"
        return ""

    def take(
        self, command: Sequence[str], environment: Mapping[str, str], streams: Mapping[int, int]
    ) -> Standby | None:
        """Let a standby through as the rank with this command line, environment and output; None: start it cold."""
        given = dict(environment)
        if tuple(command) != self.zygotes.plan.command:
            self.zygotes.say("the ranks have another command line than was expected")
            return None
        if self._differs(given):
            return None
        for _ in range(len(self._standbys)):
            if standby := self._let_through(given, streams):
                return standby
        return self._let_through(given, streams) if self._now() else None

    def _let_through(self, given: Mapping[str, str], streams: Mapping[int, int]) -> Standby | None:
        standby = self._standbys.pop(0)
        try:
            if standby.process.poll() is None:
                message = {"environment": given, "streams": list(streams)}
                wire.send(standby.gate, message, list(streams.values()))
                return standby
        except OSError:
            pass
        standby.end()
        return None

    def _differs(self, given: dict[str, str]) -> bool:
        """Whether variables differ that may have been read; leaves in `given` what the prologue would leave."""
        like = self.zygotes.plan.environment
        given.pop("PYTHONPATH", None)
        if "PYTHONPATH" in like:
            given["PYTHONPATH"] = like["PYTHONPATH"]
        names = unlike(like, given)
        if names:
            text = ", ".join(names[:3])
            self.zygotes.say(f"the ranks' environment is another one than the launcher's ({text})")
        return bool(names)

    def _end_standbys(self) -> None:
        while self._standbys:
            self._standbys.pop().end()
        self._ask_for_more()

    def close(self) -> None:
        """End all of them."""
        self._refill = False
        self._end_standbys()
        self.zygotes.close()


def went(standby: Standby, until: float) -> Forked | None:
    """The rank that the standby has become; None, and it is ended, when it has not said so until then (monotonic
    seconds)."""
    standby.gate.settimeout(max(0.001, until - time.monotonic()))
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
