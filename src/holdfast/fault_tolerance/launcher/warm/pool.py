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
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from holdfast import nvidia
from holdfast.in_time import TooLate, within
from holdfast.journal.run_dir import state_folder

from ...errors import ConfigError
from ..inbox import Inbox
from ..ranks import orphans
from ..ranks.prologue_path import hides_the_prologue
from .forked import Forked, Standby, collect, dying
from .gpu_evidence import is_tested
from .plan import (
    NOT_TESTED,
    TORCH,
    Learned,
    Request,
    checked_list,
    first_list,
    hidden,
    list_path,
    plan,
    read_list,
    script_text,
    unlike,
    why_cold,
    write_list,
)
from .zygote import wire
from .zygotes import Record, Zygotes

logger = logging.getLogger("holdfast.launcher")
DISK = 1.0
"""Seconds that it may take to read or write a list."""
STARTS = 2.0
"""Seconds in which a standby that becomes a rank has reported so."""
DEATHS = 3
"""Standbys that may die while they wait, for each rank; then no more are made."""
FOLDER_ANSWERS = 0.5
"""Seconds."""
# The names of other signals are checked later, with the other options.
CATCHABLE = signal.Signals.__members__.keys() - {"SIGKILL", "SIGSTOP"}


class Ahead:
    """What is prepared for the ranks ahead of time.

    Args:
        environment: The one that the launcher was started with.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._request: Request | None = None
        self._file = ""
        self._learned = Learned()
        self._has_learned = False
        self._read = 0  # when the list was written that was read last
        self.pool: Pool | None = None
        self.cold = ""
        """Why all ranks start cold ('' where they may start warm)."""

    def begin(self, request: Request, run_dir: str | None) -> None:
        """Start the zygote, if ranks of this request may start warm; a second call changes nothing."""
        if self._request is not None:
            return
        self._request = request
        self.cold = why_cold(request, self._environment, is_tested=is_tested(nvidia.find_driver()))
        if None in (
            sys.stdin,
            sys.stdout,
            sys.stderr,
        ):  # other files have the numbers that forks take for streams
            self.cold = "a standard stream of the launcher is closed"
        if folder := hides_the_prologue():
            self.cold = f"Python takes a sitecustomize from {folder} before it reads PYTHONPATH"
        if self.cold:
            return
        orphans.adopt()  # a fork of the zygote becomes the launcher's child
        self._file = list_path(_folder(run_dir), request.script, module=request.module)
        with suppress(TooLate):
            self._learned = within(DISK, lambda: read_list(self._file))
        signals = [signal.Signals[name] for name in request.signals if name in CATCHABLE]
        made = plan(request, self._environment)
        first = TORCH if request.module else first_list(script_text(request.script))
        zygotes = Zygotes(made, self._learned, first, request.preload, signals, self._keep)
        zygotes.begin()
        self.pool = Pool(zygotes)

    def attach(self, inbox: Inbox, record: Record, ranks: int) -> None:
        """The launcher waits in this inbox from now on, and wants a standby for each of `ranks`."""
        if self.pool:
            self.pool.attach(inbox, record, ranks)
        else:
            record("warm_start", state="off", reason=self.cold)
            if self.cold == NOT_TESTED:
                logger.info("ranks start cold: %s", self.cold)

    def check(self, now: float, modules: str, *, steady: bool) -> None:
        """To be called about once a second; `modules` is where rank 0 leaves its list."""
        if self.pool is None:
            return
        if not self._has_learned and self._learn(modules):
            self._has_learned = True
            self.pool.zygotes.learn()
        self.pool.check(now, steady=steady)

    def end_cycle(self, modules: str) -> None:
        """The list that the cycle's rank has left is for the next job, unless one was learned before."""
        if self.pool and not self._has_learned:
            self._learn(modules)

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

    def close(self) -> None:
        """End zygotes and standbys."""
        if self.pool:
            self.pool.close()
            self.pool = None


def _folder(run_dir: str | None) -> str:
    """Where lists are kept ('' for nowhere)."""
    try:
        return run_dir or state_folder()
    except ConfigError:
        return ""


class Pool:
    """Standbys, forked by `zygotes`."""

    def __init__(self, zygotes: Zygotes) -> None:
        self.zygotes = zygotes
        self._standbys: list[Standby] = []
        self._wanted = 0
        self._refill = False
        self._deaths = 0
        self._record: Record = lambda *_, **__: None

    def attach(self, inbox: Inbox, record: Record, wanted: int) -> None:
        """From now on zygotes are served wherever the launcher waits; `wanted` is the number of ranks."""
        self._wanted, self._record = wanted, record
        self.zygotes.attach(inbox, record, self._end_standbys)

    @property
    def pids(self) -> set[int]:
        """Of everything here: no rank has left it behind. A zygote that is being forked is missing (:meth:`settle`)."""
        return self.zygotes.pids | {standby.pid for standby in self._standbys} | dying()

    def check(self, now: float, *, steady: bool) -> None:
        """To be called about once a second: standbys are made while training is `steady`, lost ones replaced."""
        collect()
        for standby in [each for each in self._standbys if each.process.poll() is not None]:
            self._standbys.remove(standby)
            standby.end()
            self._deaths += 1
            status = standby.process.returncode
            self._record("warm_start", state="standby lost", pid=standby.pid, status=status)
        if self._deaths > DEATHS * self._wanted:
            self._wanted = 0
            self.zygotes.log_cold(f"{self._deaths} standbys have died while they waited")
        self.zygotes.check(now)
        if steady:
            self._refill = True
            self.zygotes.release()
        if self._refill and len(self._standbys) < self._wanted and (made := self.zygotes.fork()):
            self._standbys.append(made)

    def settle(self) -> None:
        """Make no more standbys until training is steady again, and hold imports: nothing here takes a processor from
        ranks that start, and no process comes whose pid is not known."""
        self._refill = False
        self.zygotes.hold()

    def why_not(self) -> str:
        """Why no rank of this cycle can start warm ('' if some can)."""
        if not self._standbys and not self.zygotes.is_ready:
            return "no zygote is ready"
        folder = self.zygotes.plan.folder
        if folder is None:
            return ""
        try:
            entries = within(FOLDER_ANSWERS, lambda: folder_entries(folder))
        except (OSError, TooLate) as error:
            return f"the script's folder cannot be listed ({error or 'it does not answer'})"
        if names := hidden(self.zygotes.names, entries):
            return f"{names[0]} in the script's folder hides the installed package of that name"
        return ""

    def take(
        self, command: Sequence[str], environment: Mapping[str, str], streams: Mapping[int, int]
    ) -> Standby | None:
        """A standby that becomes the rank with this command line, environment and output; None: start it cold."""
        given = dict(environment)
        if tuple(command) != self.zygotes.plan.command:
            self.zygotes.log_cold("the ranks have another command line than was expected")
            return None
        if self._differs(given):
            return None
        for standby in self._candidates():
            with suppress(OSError):
                if standby.process.poll() is None:
                    message = {"role": "rank", "environment": given, "streams": list(streams)}
                    wire.send(standby.gate, message, list(streams.values()))
                    return standby
            standby.end()
        return None

    def _candidates(self) -> Iterator[Standby]:
        while self._standbys:
            yield self._standbys.pop(0)
        if standby := self.zygotes.fork():
            yield standby

    def fork_store_host(self, module: str) -> Standby | None:
        """A process that runs `serve(descriptor)` of the file `module`, which hosts the ranks' stores.

        Its gate is the other end of that descriptor. It belongs to the caller, who ends it and spares it in a sweep.
        Returns None where no zygote has torch.
        """
        if "torch" not in self.zygotes.names:
            return None
        if standby := self.zygotes.fork():
            with suppress(OSError):
                wire.send(standby.gate, {"role": "store", "module": module})
                return standby
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
            self.zygotes.log_cold(f"the ranks' environment is another one than the launcher's ({text})")
        return bool(names)

    def _end_standbys(self) -> None:
        while self._standbys:
            self._standbys.pop().end()

    def close(self) -> None:
        """End all of them."""
        self._refill = False
        self._end_standbys()
        self.zygotes.close()


def await_start(standby: Standby, until: float) -> Forked | None:
    """The rank that the standby has become; None, and it is ended, when it has not reported so until then (monotonic
    seconds)."""
    standby.gate.settimeout(max(0.001, until - time.monotonic()))
    with suppress(OSError):
        if standby.gate.recv(1):
            standby.gate.close()
            return standby.process
    standby.end()
    return None


def folder_entries(folder: str) -> dict[str, bool]:
    """What is in the folder; true for packages."""
    return {
        entry.name: entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py"))
        for entry in os.scandir(folder)
    }
