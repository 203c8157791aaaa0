"""Where faults come into the program: its own process asks at each place whether it is the one, and says so before.

What always holds: outside of the scenario's phase, step, rank and first cycle every call does nothing. What is done is
in `deeds`, by the scenario's name.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

VARIABLE = "HOLDFAST_CORPUS_SCENARIO"
ENTERED, LATE = 0.3, 0.8
"""Seconds: when it happens to a rank that waits in a collective, and when the others come to it."""


class Point:
    """The scenario, as this rank sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._given: dict[str, Any] = json.loads(os.environ[VARIABLE])
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        self.kind: str = self._given["kind"]
        self.phase: str = self._given["phase"]
        self.workers: int = self._given["workers"]
        self.port: int = self._given["port"]
        self.mine = self.cycle == 0 and (self._given["everyone"] or self.rank == self._given["rank"])
        self._write(f"began-{self.cycle}-{self.rank}", os.environ.get("FT_RANK_MONITOR_IPC_SOCKET", ""))

    @cached_property
    def _deed(self) -> Any:
        from benchmarks.faults.deeds import named

        return named(self.kind)

    @property
    def patience(self) -> timedelta | None:
        """The process group's timeout."""
        short = self.cycle == 0 and self.kind == "peers_time_out"
        return timedelta(seconds=1.5) if short else timedelta(minutes=10)

    def at(self, phase: str, step: int = 0) -> None:
        """A place in the program's own code."""
        if self._due(phase, step, "plain"):
            self._happen()

    def reads(self, phase: str, step: int, path: str) -> str:
        """Where the program reads a file: perhaps another one."""
        if phase == "load":
            return self._path("storage", "init", step, path)
        return self._path("data", phase, step, path)

    def writes(self, phase: str, step: int, path: str) -> str:
        """Where it writes its checkpoint: perhaps another one, or "" when it has been written in another way."""
        if phase == "checkpoint":
            self.at("checkpoint", step)
        return self._path("storage", phase, step, path)

    def hooks(self, tensor: Any, step: int) -> None:
        """A tensor whose hooks run in the backward pass."""
        if self._due("step", step, "hook"):
            tensor.register_hook(lambda gradient: self._happen())

    def collective(self, phase: str, step: int) -> Callable[..., None] | None:
        """What is done instead of this collective, if anything is."""
        if not self._due(phase, step, "collective"):
            return None
        self.say()
        done: Callable[..., None] = self._deed.do
        return done

    def joint(self, phase: str, step: int) -> Callable[..., None] | None:
        """What all ranks do beside this collective, one of them in another way than the rest, if anything is."""
        if self.cycle or phase != self.phase or step != self._given["step"] or self._deed.place != "joint":
            return None
        if self.mine:
            self.say()
        done: Callable[..., None] = self._deed.do
        return done

    def enters(self, phase: str, step: int) -> None:
        """Before a collective: what can happen inside of it does, and otherwise it happens here."""
        if phase != "collective" or self.phase != phase or step != self._given["step"] or self.cycle:
            return
        if self._deed.place == "plain" and self._deed.anywhere:
            if self.mine:
                timer = threading.Timer(ENTERED, self._happen)
                timer.daemon = True
                timer.start()
            else:
                time.sleep(LATE)
        else:
            self.at(phase, step)

    def leaves_loop(self, step: int) -> bool:
        """Whether its data ends before this step."""
        if leaves := self.kind == "uneven_data" and self.mine and step == self._given["step"]:
            self.say()
        return leaves

    def done(self) -> None:
        """The program's last line."""
        self._write(f"done-{self.cycle}-{self.rank}", "")

    def say(self) -> None:
        """That it happens now, for whoever measures; whole, or not there."""
        told = {"mono": time.monotonic(), "pid": os.getpid(), "rank": self.rank}
        self._write(f"happens-{self.rank}", json.dumps(told))

    def _path(self, place: str, phase: str, step: int, path: str) -> str:
        if not self._due(phase, step, place):
            return path
        self.say()
        found = self._deed.do(self, path)
        return path if found is None else found

    def _due(self, phase: str, step: int, place: str) -> bool:
        here = self.mine and phase == self.phase and step == self._given["step"]
        return bool(here and self._deed.place == place)

    def _happen(self) -> None:
        self.say()
        self._deed.do(self)

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f".{name}-{os.getpid()}"
        temporary.write_text(text)
        temporary.replace(self.folder / name)
