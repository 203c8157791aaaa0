"""Warm start on one node: when zygotes and standbys are made, and which standby takes a rank's place.

The zygote is started before the launcher has read its configuration, and imports while the launcher does so. What it
imports is learned: once rank 0 has taken its first steps it leaves the list of its modules, which is imported in this
job and in the next one of the same script. Standbys are made when training is steady, one after the other; a rank that
finds none is forked when it is needed.
What always holds: a rank that cannot be had from here starts cold.
Does not cover: zygotes (:mod:`.zygotes`), and how a rank's process is put in the place of torch's own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.in_time import TooLate, within

from ...processes import proc
from ..inbox import Inbox
from ..ranks import orphans
from ..ranks.rank_environment import hides_the_prologue
from .forked import Standby, collect, dying
from .gpu_evidence import is_tested
from .plan import (
    NOT_TESTED,
    Learned,
    Request,
    checked_list,
    hidden,
    list_path,
    plan,
    read_list,
    unlike,
    why_cold,
    write_list,
)
from .zygote import wire
from .zygotes import Record, Zygotes

logger = logging.getLogger("holdfast.launcher")
DISK = 1.0
"""Seconds that it may take to read or write a list."""
DEATHS = 3
"""Standbys that may die while they wait, for each rank; then no more are made."""
MAKES = 0.1
"""Seconds in which standbys are made at a time: the launcher waits for each."""
FOLDER_ANSWERS = 0.5
"""Seconds."""


class Ahead:
    """What is prepared for the ranks ahead of time: standbys, forked by zygotes; nothing where ranks start cold.

    Args:
        environment: The one that the launcher was started with.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._has_begun = False
        self._file = ""
        self._learned = Learned()
        self._has_learned = False
        self._read = 0  # when the list was written that was read last
        self.cold = ""
        """Why all ranks start cold ('' where they may start warm)."""
        self._zygotes: Zygotes | None = None
        self._standbys: list[Standby] = []
        self._wanted = 0
        self._is_steady = False
        self._deaths = 0
        self._record: Record = lambda *_, **__: None

    def begin(self, request: Request, run_dir: str | None) -> None:
        """Start the zygote, if ranks of this request may start warm; a second call changes nothing."""
        if self._has_begun:
            return
        self._has_begun = True
        self.cold = why_cold(request, self._environment, is_tested=is_tested(proc.nvidia_driver()))
        if None in (sys.stdin, sys.stdout, sys.stderr):
            # Other files have the numbers that forks take for streams.
            self.cold = "a standard stream of the launcher is closed"
        if folder := hides_the_prologue():
            self.cold = f"Python takes a sitecustomize from {folder} before it reads PYTHONPATH"
        if self.cold:
            return
        orphans.adopt()  # a fork of the zygote becomes the launcher's child
        self._file = list_path(run_dir, request.script, module=request.module)
        with suppress(TooLate):
            self._learned = within(DISK, lambda: read_list(self._file))
        self._zygotes = Zygotes(plan(request, self._environment), self._learned, self._keep)
        self._zygotes.begin()

    def attach(self, inbox: Inbox, record: Record, ranks: int) -> None:
        """The launcher waits in this inbox from now on, and wants a standby for each of `ranks`."""
        self._wanted, self._record = ranks, record
        if self._zygotes is not None:
            self._zygotes.attach(inbox, record, self._end_standbys)
            return
        record("warm_start", state="off", reason=self.cold)
        if self.cold == NOT_TESTED:
            logger.info("ranks start cold: %s", self.cold)

    def until_ready(self, seconds: float) -> None:
        """Before the first ranks: wait for the imports, which a cold start would have to do as well."""
        if self._zygotes is not None:
            self._zygotes.until_ready(seconds)

    def check(self, now: float, modules: str, *, steady: bool) -> None:
        """To be called about once a second: what rank 0 leaves in the file `modules` is learned; standbys are made
        while training is `steady`, and lost ones replaced."""
        zygotes = self._zygotes
        if zygotes is None:
            return
        if not self._has_learned and self._learn(modules):
            self._has_learned = True
            zygotes.learn()
        collect()
        for standby in [each for each in self._standbys if each.process.poll() is not None]:
            self._standbys.remove(standby)
            standby.end()
            self._deaths += 1
            status = standby.process.returncode
            self._record("warm_start", state="standby lost", pid=standby.pid, status=status)
        if self._deaths > DEATHS * self._wanted:
            self._wanted = 0
            zygotes.log_cold(f"{self._deaths} standbys have died while they waited")
        zygotes.check(now)
        if steady:
            self._is_steady = True
            zygotes.release()
        until = time.monotonic() + MAKES
        while self._is_steady and len(self._standbys) < self._wanted and time.monotonic() < until:
            if (made := zygotes.fork()) is None:
                break
            self._standbys.append(made)

    def end_cycle(self, modules: str) -> None:
        """The list that the cycle's rank has left is for the next job, unless one was learned before."""
        if self._zygotes is not None and not self._has_learned:
            self._learn(modules)

    def close(self) -> None:
        """End zygotes and standbys."""
        self._end_standbys()
        if self._zygotes is not None:
            self._zygotes.close()
            self._zygotes = None

    # -- the list of modules ----------------------------------------------------------------------------------

    def _learn(self, file: str) -> bool:
        """Whether there is a list with something new."""
        try:
            written = os.stat(file).st_mtime_ns
            if written == self._read:
                return False
            self._read = written
            with open(file) as opened:
                found = checked_list(json.load(opened))
        except (OSError, ValueError, TypeError):
            return False
        known = {name for name, _ in self._learned.modules or ()}
        new = [entry for entry in found if entry[0] not in known]
        if self._learned.modules is not None and not new:
            return False
        self._learned.modules = [*(self._learned.modules or ()), *new]
        self._keep()
        return True

    def _keep(self) -> None:
        with suppress(TooLate):  # a hung disk
            within(DISK, lambda: write_list(self._file, self._learned))

    # -- standbys ---------------------------------------------------------------------------------------------

    @property
    def pids(self) -> set[int]:
        """Of everything here: no rank has left it behind. A zygote that is being forked is missing (:meth:`settle`)."""
        own = self._zygotes.pids if self._zygotes is not None else set()
        return own | {standby.pid for standby in self._standbys} | dying()

    def settle(self) -> None:
        """Make no more standbys until training is steady again, and hold imports: nothing here takes a processor from
        ranks that start, and no process comes whose pid is not known."""
        self._is_steady = False
        if self._zygotes is not None:
            self._zygotes.hold()

    def may_start(self) -> bool:
        """Whether ranks of this cycle can start warm; why none can is logged."""
        zygotes = self._zygotes
        if zygotes is None:
            return False
        if why := self._why_not(zygotes):
            zygotes.log_cold(why)
        return not why

    def _why_not(self, zygotes: Zygotes) -> str:
        if not self._standbys and not zygotes.is_ready:
            return "no zygote is ready"
        try:
            names = within(FOLDER_ANSWERS, lambda: hidden(zygotes.names, zygotes.plan.folder))
        except (OSError, TooLate) as error:
            return f"the script's folder cannot be listed ({error or 'it does not answer'})"
        if names:
            return f"{names[0]} in the script's folder hides the installed package of that name"
        return ""

    def take(
        self, command: Sequence[str], environment: Mapping[str, str], streams: Mapping[int, int]
    ) -> Standby | None:
        """A standby that becomes the rank with this command line, environment and output; None: start it cold."""
        zygotes = self._zygotes
        if zygotes is None:
            return None
        given, expected = dict(environment), zygotes.plan.environment
        given.pop("PYTHONPATH", None)  # as the prologue would leave it
        if "PYTHONPATH" in expected:
            given["PYTHONPATH"] = expected["PYTHONPATH"]
        if tuple(command) != zygotes.plan.command:
            zygotes.log_cold("the ranks have another command line than was expected")
            return None
        if names := unlike(expected, given):  # a library may have read them when it was imported
            text = ", ".join(names[:3])
            zygotes.log_cold(f"the ranks' environment is another one than the launcher's ({text})")
            return None
        role: dict[str, object] = {"role": "rank", "environment": given, "streams": list(streams)}
        descriptors = list(streams.values())
        while self._standbys:
            standby = self._standbys.pop(0)
            if _give_role(standby, role, descriptors):
                return standby
        made = zygotes.fork()
        return made if made and _give_role(made, role, descriptors) else None

    def fork_store_host(self, module: str) -> Standby | None:
        """A process that runs `serve(descriptor)` of the file `module`, which hosts the ranks' stores.

        Its gate is the other end of that descriptor. It belongs to the caller, who ends it and spares it in a sweep.
        Returns None where no zygote has torch.
        """
        if self._zygotes is None or "torch" not in self._zygotes.names:
            return None
        made = self._zygotes.fork()
        return made if made and _give_role(made, {"role": "store", "module": module}) else None

    def _end_standbys(self) -> None:
        while self._standbys:
            self._standbys.pop().end()


def _give_role(standby: Standby, role: dict[str, object], descriptors: Sequence[int] = ()) -> bool:
    """Whether it has its role now; it is ended where it has not."""
    with suppress(OSError):
        if standby.process.poll() is None:
            wire.send(standby.gate, role, descriptors)
            return True
    standby.end()
    return False
