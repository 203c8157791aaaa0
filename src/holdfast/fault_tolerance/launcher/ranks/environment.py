"""The environment of a rank: what torchrun sets, and on top of it where the rank finds its board.

torch's agent asks a LogsSpecs for the destinations of each rank's output and lets it add to the environments:
that documented extension point is where Holdfast adds its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from .prologue_path import PROLOGUE

RUN_PROGRAM = os.path.join(PROLOGUE, "run_program.py")

Variables = Callable[[int], dict[str, str]]


class SupervisedLogs(LogsSpecs):
    """The user's LogsSpecs, with Holdfast's variables added to the environment of each local rank."""

    def __init__(self, inner: LogsSpecs, variables: Variables) -> None:
        super().__init__()
        self._inner = inner
        self._variables = variables
        self.destinations: LogsDest | None = None

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Add the variables, then let the user's specs decide on the files."""
        for local_rank, environment in envs.items():
            environment.update(self._variables(local_rank))
        self.destinations = self._inner.reify(envs)
        return self.destinations

    @property
    def root_log_dir(self) -> str:
        """As the user's specs have it."""
        return self._inner.root_log_dir


def command(entrypoint: str, args: list[str], *, is_python: bool) -> tuple[str, list[str]]:
    """How to start the rank: Python runs the prologue by itself, other programs are started through a helper."""
    if is_python:
        return entrypoint, args
    return sys.executable, ["-I", "-S", RUN_PROGRAM, entrypoint, *args]
