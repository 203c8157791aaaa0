"""`holdfast autoresume` as a user starts it, with a run directory of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from holdfast.autoresume.ledger import Ledger
from holdfast.autoresume.run_dir import LEDGER, read_records
from tests.processes import Environ, Spawned, Spawner

HOLDFAST = [sys.executable, "-m", "holdfast"]


class Chains:
    """Starts chains in one run directory, and reads its ledger."""

    def __init__(self, spawn: Spawner, run_dir: Path) -> None:
        self._spawn = spawn
        self.run_dir = run_dir
        self.flag = run_dir / "finished.flag"

    def start(self, *command: str, options: tuple[str, ...] = (), env: Environ | None = None) -> Spawned:
        """`holdfast autoresume --run-dir … --backoff 0 OPTIONS -- COMMAND`."""
        given = ["autoresume", "--run-dir", self.run_dir, "--backoff", "0", *options, "--", *command]
        return self._spawn([*HOLDFAST, *given], env=env)

    def sh(self, script: str, *options: str, env: Environ | None = None) -> Spawned:
        """A chain of this shell script."""
        return self.start("sh", "-c", script, options=options, env=env)

    @property
    def ledger(self) -> Ledger:
        return Ledger.of(read_records(str(self.run_dir / LEDGER))[0])

    @property
    def endings(self) -> list[str]:
        """Of all attempts; `None` for one that has none."""
        return [str(attempt.kind) for attempt in self.ledger.attempts]


@pytest.fixture
def chains(spawn: Spawner, tmp_path: Path) -> Chains:
    return Chains(spawn, tmp_path / "run")


def begun(spawned: Spawned, number: int) -> int:
    """The pid of this attempt, once it runs."""
    found = spawned.wait_for(rf"attempt {number} begins: .* \(pid (\d+)\)$")
    assert isinstance(found, re.Match)
    return int(found.group(1))


def fill(folder: Path) -> Path:
    """Use up what the disk has left; returns the file that did."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            os.sync()
    return filler
