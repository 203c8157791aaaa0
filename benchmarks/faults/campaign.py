"""Many scenarios, some of them side by side, in folders of their own.

What always holds: results come in the order in which scenarios were given; when `over` is set, what runs is ended and
nothing else begins.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from .facts import Facts
from .job import Interrupted, Job
from .launching import INITIAL, Runner
from .scenarios import Scenario
from .surroundings import Silence, missing

CEILING = 120.0
"""Seconds after which a job is ended that did not end by itself."""
PATIENCE = INITIAL + 6.0
"""Seconds after a fault in which another launcher must have started ranks again: longer than any of the limits."""
LARGE = 6
"""From so many ranks on, a job takes the place of two."""


class Campaign:
    """Runs scenarios below one folder. `skipped` has what this machine does not allow, with the reason."""

    def __init__(self, folder: Path, jobs: int, over: threading.Event) -> None:
        self._folder, self._jobs, self._over = folder, max(1, jobs), over
        self._room = threading.Semaphore(self._jobs)
        self._turn = threading.Lock()
        self.skipped: dict[str, str] = {}

    def run(self, runner: Runner, scenarios: Sequence[Scenario]) -> Iterator[tuple[Scenario, Facts | None]]:
        """Each with what became of it; None: it was skipped, or everything was ended before."""
        home = self._folder / runner.who
        home.mkdir(parents=True, exist_ok=True)
        with closing(Silence()) as silence, ThreadPoolExecutor(self._jobs) as pool:
            results = pool.map(lambda one: self._one(runner, one, home, silence.port), scenarios)
            yield from zip(scenarios, results, strict=True)

    def _one(self, runner: Runner, scenario: Scenario, home: Path, port: int) -> Facts | None:
        if reason := next(filter(None, map(missing, scenario.needs)), ""):
            self.skipped[scenario.name] = reason
            return None
        width = min(self._jobs, 2 if scenario.world >= LARGE else 1)
        with self._turn:  # one at a time takes its places, or two large ones could wait for each other
            for _ in range(width):
                self._room.acquire()
        try:
            return None if self._over.is_set() else self._done(runner, scenario, home, port)
        except Interrupted:
            return None
        finally:
            for _ in range(width):
                self._room.release()

    def _done(self, runner: Runner, scenario: Scenario, home: Path, port: int) -> Facts:
        folder = home / scenario.name.replace("/", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        found = Job(scenario, runner, folder, port).run(
            CEILING, None if runner.ours else PATIENCE, self._over
        )
        print(f"{runner.who}: {scenario.name}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        return found
