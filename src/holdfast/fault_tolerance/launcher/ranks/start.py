"""Starting the ranks of a cycle: their environments, and their processes, warm from a standby or cold.

The environment is the one that torchrun gives. A rank that cannot start warm starts cold.
Source: torch.distributed.elastic, whose agent sets these variables.
Does not cover: what happens to the ranks afterwards (:mod:`.processes`), and their output (:mod:`.output`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from string import Template
from subprocess import Popen
from types import SimpleNamespace

from ..control.messages import StartRanks
from ..warm.forked import Process, Standby
from ..warm.pool import Ahead
from .output import CycleLog, RankOutput
from .prologue_path import PROLOGUE

logger = logging.getLogger("holdfast.launcher")
STARTS = 2.0
"""Seconds in which a standby that becomes a rank has reported so."""
RUN_PROGRAM = os.path.join(PROLOGUE, "run_program.py")
RUN_SCRIPT = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
Variables = Callable[[int, int], dict[str, str]]
"""Holdfast's additions to the environment of a local rank in a cycle."""


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
        given: torchrun's options.
        run_id: The job's.
        variables: Holdfast's additions to a rank's environment.
        ahead: The standbys.
        log: For the output of all ranks of a cycle; None: no such files.
    """

    def __init__(
        self,
        given: SimpleNamespace,
        run_id: str,
        variables: Variables,
        ahead: Ahead,
        log: CycleLog | None = None,
    ) -> None:
        self._given, self._run_id, self._variables, self._ahead = given, run_id, variables, ahead
        self._command = command(given)
        self.output = RankOutput(given, log)
        self.warm: set[int] = set()
        """Local ranks of this cycle that were standbys."""

    def environments(self, where: StartRanks, node: str) -> dict[int, dict[str, str]]:
        """What torchrun adds to the environment of each local rank, and what Holdfast does."""
        given, members = self._given, where.membership
        number, count = members.index(node), int(given.nproc_per_node)
        first, (first_of_role, role_size) = members.first_rank(node), members.role_ranks(node)
        shared = {
            "GROUP_RANK": str(number),
            "GROUP_WORLD_SIZE": str(len(members.members)),
            "ROLE_NAME": given.role,
            "ROLE_WORLD_SIZE": str(role_size),
            "LOCAL_WORLD_SIZE": str(count),
            "WORLD_SIZE": str(members.world_size),
            "MASTER_ADDR": where.address,
            "MASTER_PORT": str(where.port),
            "TORCHELASTIC_MAX_RESTARTS": str(given.max_restarts),
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        found = {}
        for local in range(count):
            own = {"RANK": str(first + local), "ROLE_RANK": str(first_of_role + local)}
            found[local] = {**shared, **own, **self._device(local), **self._variables(local, where.cycle)}
        return found

    def _device(self, local: int) -> dict[str, str]:
        """LOCAL_RANK, and with --virtual-local-rank the one GPU that the rank sees."""
        if not getattr(self._given, "virtual_local_rank", False):
            return {"LOCAL_RANK": str(local)}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible is not None else [str(gpu) for gpu in range(local + 1)]
        if local >= len(gpus):
            raise OSError(
                f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} has no GPU for local rank {local}"
            )
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpus[local].strip()}

    def start(self, where: StartRanks, node: str) -> dict[int, Process]:
        """The processes by local rank.

        Raises:
            OSError: No process can be started, or no file for its output be made. Some ranks may run.
        """
        environments = self.environments(where, node)
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
        if getattr(self._given, "numa_binding", None) is not None:
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
