"""Warm start from the launcher's first moment: the zygote imports while the launcher does so itself.

What it imports is learned: once rank 0 has taken its first steps it leaves the list of its modules, which the next
zygote imports, in this job and in the next of the same script.
Does not cover: abbreviated options, which only torch's parser knows; then the zygote starts after torch was imported.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from holdfast import nvidia
from holdfast.in_time import TooLate, within
from holdfast.journal.run_dir import state_folder

from ...errors import ConfigError
from ..inbox import Inbox
from ..ranks.prologue_path import hides_the_prologue
from . import learned
from .first_list import TORCH, first_list
from .gpu_evidence import is_tested
from .plan import NOT_TESTED, Request, plan, why_cold
from .pool import Pool
from .zygotes import Record, Zygotes

logger = logging.getLogger("holdfast.launcher")
DISK = 1.0  # seconds that it may take to read or write a list
# Of the others the user hears later, by torch's checks.
CATCHABLE = signal.Signals.__members__.keys() - {"SIGKILL", "SIGSTOP"}


class Ahead:
    """What is begun before the launcher knows all of its options; `environment` is the one it was started with."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._request: Request | None = None
        self._file = ""
        self._learned = learned.Learned()
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
        if folder := hides_the_prologue():
            self.cold = f"Python takes a sitecustomize from {folder} before it looks at PYTHONPATH"
        if self.cold:
            return
        self._file = learned.path(_folder(run_dir), request.script, module=request.module)
        with suppress(TooLate):
            self._learned = within(DISK, lambda: learned.read(self._file))
        signals = [signal.Signals[name] for name in request.signals if name in CATCHABLE]
        made = plan(request, self._environment)
        first = TORCH if request.module else first_list(_text(request.script))
        zygotes = Zygotes(made, self._learned, first, request.preload, signals, self._keep)
        zygotes.begin()
        self.pool = Pool(zygotes)

    def attach(self, inbox: Inbox, record: Record, ranks: int) -> None:
        """The launcher waits in this inbox from now on, and wants so many standbys."""
        if self.pool:
            self.pool.attach(inbox, record, ranks)
        else:
            record("warm_start", state="off", reason=self.cold)
            if self.cold == NOT_TESTED:
                logger.info("ranks start cold: %s", self.cold)

    def look(self, now: float, modules: str, *, steady: bool) -> None:
        """Call it about once a second; `modules` is where rank 0 leaves its list."""
        if self.pool is None:
            return
        if not self._has_learned and self._learn(modules):
            self._has_learned = True
            self.pool.zygotes.learn(self._learned)
        self.pool.look(now, steady=steady)

    def look_back(self, modules: str) -> None:
        """The cycle is over: what its rank has left is for the next job, unless it was learned before."""
        if self.pool and not self._has_learned:
            self._learn(modules)

    def _learn(self, file: str) -> bool:
        """Whether there is a list, and it tells something new."""
        try:
            as_it_is = os.stat(file).st_mtime_ns
            if as_it_is == self._read:
                return False
            self._read = as_it_is
            with open(file) as opened:
                found = learned.entries(json.load(opened))
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
            within(DISK, lambda: learned.write(self._file, self._learned))

    def close(self) -> None:
        """End what was begun."""
        if self.pool:
            self.pool.close()
            self.pool = None


def _text(script: str) -> bytes:
    """The script's; of a folder, a pipe or what cannot be read something that says nothing."""
    try:
        if os.path.isfile(script):
            with open(script, "rb") as file:
                return file.read()
    except OSError:
        pass
    return b"import torch"


def _folder(run_dir: str | None) -> str:
    """Where lists are kept ('' for nowhere)."""
    try:
        return run_dir or state_folder()
    except ConfigError:
        return ""
