"""The environment of a rank: the path of its board, its settings, its identity. Reading it never fails training.

A variable that cannot be understood is logged as a warning and treated as absent. Does not cover: variables of the
launcher's own settings (`config_sources`).
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.prefixed_log import log as _log

from .board import Identity, Limits
from .config_fields import amount
from .timeouts.learned_timeouts import Floors

if TYPE_CHECKING:
    from .config import FaultToleranceConfig

CONFIG = "HOLDFAST_CONFIG"
"""The settings in force, as JSON of `FaultToleranceConfig.to_dict`."""
RUN_DIR = "HOLDFAST_RUN_DIR"
"""The run directory of the job on this node, for what a rank writes for people to read later."""
CYCLE = "TORCHELASTIC_RESTART_COUNT"
FLOOR = "HOLDFAST_LEARNED_FLOOR"
"""In the environment of ranks: the shortest learned timeout in seconds, in place of 10."""
INITIAL_FLOOR = "HOLDFAST_LEARNED_INITIAL_FLOOR"
"""The same for the first heartbeat and the section `setup`, in place of 300."""
CONFIG_SUFFIX = ".config.json"
"""The settings of a rank that has no launcher are in a file next to its board (see `server`)."""


@dataclass(frozen=True)
class RankInfo:
    """Who this process is in the job. `global_rank` and `local_rank` are -1 where they are unknown."""

    global_rank: int
    local_rank: int
    host: str
    pid: int


def rank_info(identity: Identity | None) -> RankInfo:
    """From the identity that the launcher wrote on the board, else from RANK and LOCAL_RANK."""
    rank = identity.rank if identity else _integer("RANK")
    local_rank = identity.local_rank if identity else _integer("LOCAL_RANK")
    return RankInfo(rank, local_rank, socket.gethostname(), os.getpid())


def run_dir() -> str | None:
    """The job's run directory, an absolute path; None without ft_launcher."""
    path = os.environ.get(RUN_DIR, "")
    return path if os.path.isabs(path) else None


def cycle() -> int:
    """Which start of all ranks this is, from 0; 0 where it is unknown."""
    return max(0, _integer(CYCLE))


def settings(board_path: str, board_limits: Limits) -> FaultToleranceConfig:
    """The settings that the launcher passed on; where there are none, or none that can be read, the defaults with
    the timeouts that are on the board."""
    from .config import FaultToleranceConfig

    text, where = os.environ.get(CONFIG, ""), f"the environment variable {CONFIG}"
    try:
        if not text and board_path:
            where = os.path.realpath(board_path) + CONFIG_SUFFIX
            with open(where, encoding="utf-8") as file:
                text = file.read()
        if text:
            values = json.loads(text)
            if not isinstance(values, dict):
                raise TypeError(f"{values!r} is no mapping")
            return FaultToleranceConfig.from_kwargs(False, **values)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError) as error:
        _log.warning(
            "the settings in %s cannot be read (%s); the timeouts of the board are used", where, error
        )
    if not board_path:
        return FaultToleranceConfig()
    return FaultToleranceConfig(
        initial_rank_heartbeat_timeout=board_limits.initial,
        rank_heartbeat_timeout=board_limits.subsequent,
        rank_section_timeouts=dict(board_limits.sections),
        rank_out_of_section_timeout=board_limits.out_of_section,
    )


def floors() -> Floors:
    """The floors of learned timeouts: the defaults, or those of the environment (seconds, 0 for no floor)."""
    default = Floors()
    return Floors(_seconds(FLOOR, default.general), _seconds(INITIAL_FLOOR, default.initial))


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return amount(text) if text else default
    except ValueError:
        _log.warning("%s=%r is not a number of seconds; the floor stays %g s", name, text, default)
        return default


def _integer(name: str) -> int:
    try:
        return int(os.environ.get(name, "-1"))
    except ValueError:
        return -1
