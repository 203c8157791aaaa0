"""Starting the ranks of a cycle: their environments, output files and processes, warm from a standby or cold.

Environments and files are those that torchrun gives: the user's LogsSpecs decides on the files, torch's handler starts
a cold rank, torch's tailers copy what `--tee` asks for. A rank that cannot start warm starts cold.
Source: torch.distributed.elastic, whose agent sets these variables.
Does not cover: what happens to the ranks afterwards (:mod:`.group`).
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from string import Template
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsDest
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.utils import macros
from torch.distributed.launcher.api import LaunchConfig

from ..control.messages import StartRanks
from ..warm.pool import GOES, Pool, went
from .output import Companions
from .prologue_path import PROLOGUE

logger = logging.getLogger("holdfast.launcher")
RUN_PROGRAM = os.path.join(PROLOGUE, "run_program.py")
Variables = Callable[[int, int], dict[str, str]]
"""Holdfast's additions to the environment of a local rank in a cycle."""


def command(entrypoint: str, args: list[str], *, is_python: bool) -> tuple[str, list[str]]:
    """How to start the rank: Python runs the prologue by itself, other programs are started through a helper."""
    if is_python:
        return entrypoint, args
    return sys.executable, ["-I", "-S", RUN_PROGRAM, entrypoint, *args]


class RankStarter:
    """Starts the ranks of one cycle after the other.

    Args:
        config: torchrun's settings.
        entrypoint: The program, and `args` its arguments.
        variables: Holdfast's additions to a rank's environment.
        pool: The standbys; None where ranks always start cold.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: str,
        args: list[str],
        variables: Variables,
        pool: Pool | None,
    ) -> None:
        self._config, self._entrypoint, self._args = config, entrypoint, args
        self._variables, self._pool = variables, pool
        self._companions = Companions()
        self.files = LogsDest()
        """The ranks' output and error files in this cycle."""
        self.warm: set[int] = set()
        """Local ranks of this cycle that were standbys."""

    @property
    def log_dir(self) -> str:
        """The folder of the ranks' logs."""
        assert self._config.logs_specs is not None
        return str(self._config.logs_specs.root_log_dir)

    def environments(self, where: StartRanks, node: str) -> dict[int, dict[str, str]]:
        """What torchrun adds to the environment of each local rank, and what Holdfast does."""
        config, members = self._config, where.membership
        number, count = members.index(node), config.nproc_per_node
        first, (first_of_role, role_size) = members.first_rank(node), members.role_ranks(node)
        shared = {
            "GROUP_RANK": str(number),
            "GROUP_WORLD_SIZE": str(len(members.members)),
            "ROLE_NAME": config.role,
            "ROLE_WORLD_SIZE": str(role_size),
            "LOCAL_WORLD_SIZE": str(count),
            "WORLD_SIZE": str(members.world_size),
            "MASTER_ADDR": where.address,
            "MASTER_PORT": str(where.port),
            "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
            "TORCHELASTIC_RUN_ID": config.run_id,
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
        if not getattr(self._config, "virtual_local_rank", False):
            return {"LOCAL_RANK": str(local)}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible is not None else [str(gpu) for gpu in range(local + 1)]
        if local >= len(gpus):
            raise OSError(
                f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} has no GPU for local rank {local}"
            )
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpus[local].strip()}

    def start(self, where: StartRanks, node: str) -> dict[int, Popen[bytes]]:
        """The processes by local rank.

        Raises:
            OSError: No process can be started, or no file for its output be made. Some ranks may run.
        """
        environments = self.environments(where, node)
        self._companions.prepare(environments)
        assert self._config.logs_specs is not None
        self.files = self._config.logs_specs.reify(environments)
        processes = self._start_all(environments)
        self._companions.tail(self._config, self.files, self._prefixes(environments))
        return processes

    def end(self) -> None:
        """The ranks are gone: end what torch runs beside them."""
        self._companions.end()

    def _prefixes(self, environments: Mapping[int, Mapping[str, str]]) -> dict[int, str] | None:
        """The header of each rank's lines for `--tee`, from TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE."""
        template = self._config.log_line_prefix_template
        if not template:
            return None
        return {
            local: Template(template).safe_substitute(
                role_name=self._config.role, rank=int(each["RANK"]), local_rank=local
            )
            for local, each in environments.items()
        }

    # -- processes --------------------------------------------------------------------------------------------

    def _start_all(self, environments: Mapping[int, dict[str, str]]) -> dict[int, Popen[bytes]]:
        pool = self._pool
        if pool is not None:
            pool.hold()
            if why := pool.why_not():
                pool.zygotes.say(why)
                pool = None
        standbys = {}
        processes: dict[int, Popen[bytes]] = {}
        for local, added in environments.items():
            standby = self._standby(pool, local, added) if pool is not None else None
            if standby is None:
                processes[local] = self._cold(local, added)
            else:
                standbys[local], processes[local] = standby, standby.process
        self.warm = set()
        until = time.monotonic() + GOES
        for local, standby in standbys.items():
            if went(standby, until):
                self.warm.add(local)
                continue
            logger.warning("warm start: the standby for local rank %d did not go: it starts cold", local)
            processes[local] = self._cold(local, environments[local])
        return processes

    def _arguments(self, local: int) -> tuple[str, ...]:
        return tuple(macros.substitute(list(self._args), str(local)))

    def _standby(self, pool: Pool, local: int, added: Mapping[str, str]) -> Any:
        """A standby that has become this rank, or None."""
        with ExitStack() as stack:
            paths = {1: self.files.stdouts[local], 2: self.files.stderrs[local]}
            files = {stream: stack.enter_context(open(path, "w")) for stream, path in paths.items() if path}
            streams = {stream: file.fileno() for stream, file in files.items()}
            line = (self._entrypoint, *self._arguments(local))
            return pool.take(line, {**os.environ, **added}, streams)

    def _cold(self, local: int, added: dict[str, str]) -> Popen[bytes]:
        """Torch's handler opens the files, binds to the NUMA node where that is asked for, and starts the process."""
        given: dict[str, Any] = {
            "entrypoint": self._entrypoint,
            "args": self._arguments(local),
            "env": added,
            "stdout": self.files.stdouts[local],
            "stderr": self.files.stderrs[local],
            "local_rank_id": local,
            "numa_options": getattr(self._config, "numa_options", None),
        }
        known = inspect.signature(SubprocessHandler).parameters  # `numa_options`: since torch 2.9
        return SubprocessHandler(**{name: value for name, value in given.items() if name in known}).proc
