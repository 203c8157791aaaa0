"""Which zygote serves: the first one, the one that takes its place when a list was learned, and what becomes of them.

What always holds: whatever fails, ranks start cold, which is said once for each job; nothing here waits, but for
:meth:`Zygotes.until_ready` before the first ranks.
Does not cover: standbys (:mod:`.pool`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ..inbox import Inbox
from .learned import Learned
from .plan import Plan
from .zygote.preload import Entry
from .zygote_process import GONE, READY, STARTING, Standby, ZygoteProcess

logger = logging.getLogger("holdfast.launcher")
Record = Callable[..., object]
GAP = 3.0  # seconds between two looks after which this launcher itself has stood still
REBUILDS = 12  # zygotes that refused a module, in one job
ATTEMPTS = 3  # zygotes that ended for another reason, in one job
PAUSE = 30.0  # seconds between two of these


class Zygotes:
    """They import what is `learned`, or `first` while that is not known, and `preload`; `changed` is called when a
    package was refused. `names` are the packages that the standbys have imported."""

    def __init__(
        self,
        plan: Plan,
        learned: Learned,
        first: Sequence[Entry],
        preload: Sequence[str],
        signals: Sequence[int],
        changed: Callable[[], None],
    ) -> None:
        self.plan = plan
        self._learned, self._first, self._preload = learned, first, tuple(preload)
        self._signals, self._changed = signals, changed
        self._serving: ZygoteProcess | None = None
        self._coming: ZygoteProcess | None = None  # which will take its place when it has imported
        self._inbox: Inbox | None = None
        self._record: Record = lambda *_, **__: None
        self._forked: Callable[[Standby], None] = Standby.end
        self._replaced: Callable[[], None] = lambda: None
        self.names: list[str] = []
        self._refusals, self._losses, self._next_attempt = 0, 0, 0.0
        self._said = False
        self._passing: dict[str, str] = {}  # what this job does without, and the next one tries again
        self._trains = False
        self._looked = time.monotonic()

    def begin(self) -> None:
        """Start the first one; raises nothing."""
        self._serving = self._new()

    def attach(
        self,
        inbox: Inbox,
        record: Record,
        forked: Callable[[Standby], None],
        replaced: Callable[[], None],
    ) -> None:
        """From now on they are heard wherever the launcher waits. `forked` gets standbys, `replaced` is called when
        another zygote serves: standbys of the one before have imported less."""
        self._inbox, self._record, self._forked, self._replaced = inbox, record, forked, replaced
        self._watch(self._serving)

    @property
    def _all(self) -> list[ZygoteProcess]:
        return [zygote for zygote in (self._serving, self._coming) if zygote]

    @property
    def pids(self) -> set[int]:
        """Their processes."""
        return {zygote.pid for zygote in self._all}

    @property
    def ready(self) -> ZygoteProcess | None:
        """The one that can fork now."""
        return self._serving if self._serving and self._serving.state == READY else None

    def learn(self, learned: Learned) -> None:
        """Import this from now on: a new zygote does so while the old one serves."""
        self._learned = learned
        self._drop(self._coming)
        self._coming = self._new(gently=True)
        self._watch(self._coming)

    def hold(self) -> None:
        """Ranks start: imports wait, so that these have the processors to themselves."""
        self._trains = True
        for zygote in self._all:
            if zygote.is_readable(0):
                self._heard(zygote)  # it may have become ready
        for zygote in self._all:
            zygote.hold()

    def go_on(self) -> None:
        """Training is steady again."""
        for zygote in self._all:
            zygote.go_on()

    def look(self, now: float) -> None:
        """Call it about once a second: one that hangs is ended, one that was lost replaced."""
        gap, self._looked = now - self._looked, now
        for zygote in self._all:
            if gap > GAP:
                zygote.lend(gap)
            if zygote.stands_still(now):
                zygote.told = {"said": "end", "hung": zygote.importing}
                self._ended(zygote)
        if not self._all and 0 < self._losses <= ATTEMPTS and now >= self._next_attempt:
            self._start_again()

    def until_ready(self, seconds: float) -> None:
        """Before the first ranks: wait for the imports, which a cold start would have to do as well."""
        until = time.monotonic() + seconds
        while (zygote := self._serving) is not None and zygote.state == STARTING:
            if not zygote.until_ready(until):
                self.say(f"imports take longer than {seconds:g} s")
                break
            self._follow(zygote)
        self._looked = time.monotonic()

    # -- what becomes of them ---------------------------------------------------------------------

    def _new(self, *, gently: bool = False) -> ZygoteProcess | None:
        known = self._first if self._learned.modules is None else self._learned.modules
        modules = [*known, *((name, None) for name in self._preload)]
        try:
            without = [*self._learned.refused, *self._passing]
            return ZygoteProcess(self.plan, modules, without, self._signals, gently=gently)
        except OSError as error:
            self.say(f"no process for it can be started: {error}")
            return None

    def _watch(self, zygote: ZygoteProcess | None) -> None:
        if zygote and self._inbox and zygote.state != GONE:
            self._inbox.watch(zygote.channel.fileno(), lambda: self._heard(zygote))

    def _heard(self, zygote: ZygoteProcess) -> None:
        """Called wherever the launcher waits: nothing that goes wrong here may end the job."""
        if zygote.channel.fileno() < 0:
            return
        try:
            if standby := zygote.hear():
                self._forked(standby)
            self._follow(zygote)
        except Exception as error:
            self.lost(zygote, repr(error))

    def _follow(self, zygote: ZygoteProcess) -> None:
        """Act on what this one has become."""
        if zygote.state == GONE:
            self._ended(zygote)
        elif zygote.state == READY and self.names is not zygote.names:
            if zygote is self._coming:
                self._drop(self._serving)
                self._serving, self._coming = zygote, None
            self.names = zygote.names
            for name in self._preload:
                if why := zygote.told.get("failed", {}).get(name):
                    logger.warning("--ft-preload %s: it cannot be imported (%s)", name, why)
            self._record("warm_start", state="ready", packages=len(zygote.names))
            self._replaced()

    def _ended(self, zygote: ZygoteProcess) -> None:
        """It refused a module, or hung, or failed, or was killed."""
        told = zygote.told if zygote.told.get("said") == "end" else {}
        importing = "" if zygote.names or told else zygote.importing
        if "refused" in told:
            self._drop(zygote)
            self._refused(told["refused"], told["why"], told["without"], self._learned.refused)
        elif hung := told.get("hung"):
            self._drop(zygote)
            self._refused(hung, "its import stands still", [hung.partition(".")[0]], self._passing)
        elif importing:
            self._drop(zygote)
            why = "the interpreter ends while it is imported"
            self._refused(importing, why, [importing.partition(".")[0]], self._passing)
        else:
            self.lost(zygote, told.get("failed", "it stands still" if "hung" in told else "it ended"))

    def _refused(self, module: str, why: str, without: Sequence[str], kept: dict[str, str]) -> None:
        fresh = [name for name in without if name not in {*self._learned.refused, *self._passing}]
        self._record("warm_start", state="refused", module=module, reason=why, without=list(without))
        self._refusals += 1
        if not fresh or "torch" in without or self._refusals > REBUILDS:
            self.say(f"{module} cannot be imported ahead: {why}")
            return
        kept.update(dict.fromkeys(fresh, f"{module}: {why}"))
        logger.warning("warm start: %s is not imported ahead: %s", module, why)
        self._changed()
        self._start_again()

    def _start_again(self) -> None:
        zygote = self._new(gently=self._trains)
        if self._serving is None:
            self._serving = zygote
        else:
            self._coming = zygote
        self._watch(zygote)

    def lost(self, zygote: ZygoteProcess, why: str) -> None:
        """This one does not work (any more)."""
        self._drop(zygote)
        # One that never said a word may not even be a zygote: what happened once would happen again.
        self._losses += 1 if zygote.is_here else ATTEMPTS + 1
        self._next_attempt = time.monotonic() + PAUSE
        self._record("warm_start", state="ended", reason=why)
        self.say(f"its zygote (pid {zygote.pid}) is lost: {why}")

    def say(self, why: str) -> None:
        """Why ranks start cold, once for each job."""
        if not self._said:
            self._said = True
            logger.warning("warm start: %s. Ranks start cold", why)

    def _drop(self, zygote: ZygoteProcess | None) -> None:
        if zygote is None:
            return
        if self._inbox and zygote.channel.fileno() >= 0:
            self._inbox.ignore(zygote.channel.fileno())
        zygote.end()
        if zygote is self._serving:
            self._serving = None
        if zygote is self._coming:
            self._coming = None

    def close(self) -> None:
        """End all."""
        for zygote in self._all:
            self._drop(zygote)
