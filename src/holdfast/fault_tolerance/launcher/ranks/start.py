"""Starting the ranks of a cycle: their processes, warm from a standby or cold. One that cannot start warm starts cold.

Does not cover: their environment (:mod:`.rank_environment`), their output (:mod:`.output`), and what happens to them
afterwards (:mod:`.processes`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from string import Template
from subprocess import Popen
from types import SimpleNamespace

from ..control.messages import StartRanks
from ..warm.forked import Process, Standby
from ..warm.pool import Ahead
from .output import CycleLog, RankOutput
from .rank_environment import PROLOGUE, RankEnvironment

logger = logging.getLogger("holdfast.launcher")
STARTS = 2.0
"""Seconds in which a standby that becomes a rank has reported so."""
RUN_PROGRAM = os.path.join(PROLOGUE, "run_program.py")
RUN_SCRIPT = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def command(given: SimpleNamespace) -> tuple[str, ...]:
    """The command line of the ranks, as torchrun has it: Python runs the prologue by itself, other programs are started
    through a helper."""
    script, arguments = given.training_script, given.training_script_args
    if given.run_path:  # torchrun would call a function in a forked interpreter; a fresh one does it
        return (sys.executable, "-u", "-c", RUN_SCRIPT, script, *arguments)
    if given.no_python:
        return (sys.executable, "-I", "-S", RUN_PROGRAM, script, *arguments)
    module = ("-m",) if given.module else ()
    return (os.environ.get("PYTHON_EXEC", sys.executable), "-u", *module, script, *arguments)


class RankStarter:
    """Starts the ranks of one cycle after the other.

    Args:
        environment: What it adds to its own environment for them.
        log: For the output of all ranks of a cycle; None: no such files.
    """

    def __init__(self, environment: RankEnvironment, ahead: Ahead, log: CycleLog | None = None) -> None:
        self._environment, self._ahead = environment, ahead
        self._given = given = environment.options.torch
        self._command = command(given)
        self.output = RankOutput(given, log)
        self.warm: set[int] = set()
        """Local ranks of this cycle that were standbys."""

    def start(self, where: StartRanks, node: str) -> dict[int, Process]:
        """The processes by local rank.

        Raises:
            OSError: No process can be started, or no file for its output be made. Some ranks may run.
        """
        environments = self._environment.of_all(where, node)
        self.output.prepare(environments)
        processes = self._start_all(environments)
        self.output.copy(environments)
        return processes

    # -- processes --------------------------------------------------------------------------------------------

    def _start_all(self, environments: Mapping[int, dict[str, str]]) -> dict[int, Process]:
        self._ahead.settle()
        may_start = self._ahead.may_start()
        standbys = {}
        processes: dict[int, Process] = {}
        for local, added in environments.items():
            standby = self._standby(local, added) if may_start else None
            if standby is None:
                processes[local] = self._cold(local, added)
            else:
                standbys[local], processes[local] = standby, standby.process
        self.warm = set()
        until = time.monotonic() + STARTS
        for local, standby in standbys.items():
            if standby.has_started(until):
                self.warm.add(local)
                continue
            logger.warning(
                "warm start: the standby for local rank %d did not respond: the rank starts cold", local
            )
            processes[local] = self._cold(local, environments[local])
        return processes

    def _line(self, local: int) -> tuple[str, ...]:
        """The command line of a local rank; as torchrun, with its number in place of ${local_rank}."""
        program, *words = self._command
        return (program, *(Template(word).safe_substitute(local_rank=local) for word in words))

    def _streams(self, local: int, stack: ExitStack) -> dict[int, int]:
        """The open files in place of the launcher's own stdout and stderr, by descriptor."""
        paths = zip((1, 2), self.output.paths[local], strict=True)
        return {stream: stack.enter_context(open(path, "w")).fileno() for stream, path in paths if path}

    def _standby(self, local: int, added: Mapping[str, str]) -> Standby | None:
        """A standby that has become this rank, or None."""
        with ExitStack() as stack:
            streams = self._streams(local, stack)
            return self._ahead.take(self._line(local), {**os.environ, **added}, streams)

    def _cold(self, local: int, added: dict[str, str]) -> Popen[bytes]:
        if self._given.numa_binding is not None:
            return self._bound_to_numa_node(local, added)
        with ExitStack() as stack:
            streams = self._streams(local, stack)
            return Popen(
                self._line(local),
                env={**os.environ, **added},
                stdout=streams.get(1),
                stderr=streams.get(2),
                start_new_session=True,
            )

    def _bound_to_numa_node(self, local: int, added: dict[str, str]) -> Popen[bytes]:
        """By torch's own handler (torch 2.9), which finds the processors that are next to the rank's GPU."""
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
        from torch.numa.binding import AffinityMode, NumaOptions

        program, *words = self._line(local)
        return SubprocessHandler(
            program,
            tuple(words),
            added,
            *self.output.paths[local],
            local,
            NumaOptions(affinity_mode=AffinityMode(self._given.numa_binding)),
        ).proc
