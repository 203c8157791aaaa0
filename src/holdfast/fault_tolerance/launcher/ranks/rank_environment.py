"""The environment of every rank: what torchrun gives, and what Holdfast adds.

The prologue's folder comes first on PYTHONPATH, so that it runs in the rank before the script (`ranks/prologue`).
Torch's flight recorder is on, so that an incident can show in which collective each rank is. Recent torch turns it on
by itself, with as many entries.
Source: torch.distributed.elastic, whose agent sets these variables.
Does not cover: reading the flight recorder (`prologue/introspection.py`).
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a zygote is started before these are imported
    from ..command_line.ft_options import LauncherOptions
    from ..control.messages import StartRanks
    from .boards import CycleBoards

VARIABLE, OLDER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
ENTRIES = "2000"
PROLOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prologue")


@dataclass(frozen=True)
class RankEnvironment:
    """What a launcher adds to its own environment for its ranks."""

    options: LauncherOptions
    run_id: str
    run_dir: str
    boards: CycleBoards

    def of_all(self, where: StartRanks, node: str) -> dict[int, dict[str, str]]:
        """The additions of a cycle by local rank. OSError where a rank cannot have a GPU of its own."""
        given, members = self.options.torch, where.membership
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
            # One number for the whole job, also for restarts that only let a node join: log folders stay apart.
            "TORCHELASTIC_RESTART_COUNT": str(where.cycle),
            "TORCHELASTIC_MAX_RESTARTS": str(given.max_restarts),
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": given.signals_to_handle,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "HOLDFAST_OPTIMIZER_STEPS": "" if self.options.ignore_optimizer_steps else "1",
            "HOLDFAST_CONFIG": json.dumps(self.options.resolved.config.to_dict()),
            "HOLDFAST_RUN_DIR": self.run_dir,
            "HOLDFAST_LAUNCHER_PID": str(os.getpid()),
            **flight_recorder(os.environ),
            "PYTHONPATH": with_prologue(os.environ.get("PYTHONPATH")),
        }
        found = {}
        for local in range(count):
            own = {
                "RANK": str(first + local),
                "ROLE_RANK": str(first_of_role + local),
                "FT_RANK_MONITOR_IPC_SOCKET": self.boards.path(local),
                "HOLDFAST_ERROR_FILE": self.boards.error_path(local),
                "HOLDFAST_STDERR_FILE": self.boards.stderr_path(local),
            }
            found[local] = {**shared, **own, **self._device(local)}
        found[0]["HOLDFAST_MODULES_FILE"] = self.boards.modules_path
        return found

    def _device(self, local: int) -> dict[str, str]:
        """LOCAL_RANK, and with --virtual-local-rank the one GPU that the rank sees."""
        if not self.options.torch.virtual_local_rank:
            return {"LOCAL_RANK": str(local)}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible is not None else [str(gpu) for gpu in range(local + 1)]
        if local >= len(gpus):
            raise OSError(
                f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} has no GPU for local rank {local}"
            )
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpus[local].strip()}


def with_prologue(python_path: str | None) -> str:
    """PYTHONPATH with the prologue's folder in front (the prologue takes it off again)."""
    return os.pathsep.join([PROLOGUE, python_path]) if python_path else PROLOGUE


def hides_the_prologue() -> str:
    """A folder from which this Python takes a sitecustomize of the site's own before it reads PYTHONPATH, because a
    ``.pth`` file puts it there; '' where the prologue comes first."""
    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for entry in sys.path[not getattr(sys.flags, "safe_path", False) :]:
        if entry in libraries or entry.endswith(".zip"):
            break
        own = os.path.join(entry, "sitecustomize")
        if os.path.abspath(entry) not in given and (os.path.exists(f"{own}.py") or os.path.isdir(own)):
            return entry
    return ""


def flight_recorder(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to this environment: nothing where the user has set it, by either name."""
    return {} if VARIABLE in environment or OLDER in environment else {VARIABLE: ENTRIES}
