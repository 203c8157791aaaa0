"""A rank's environment: a board of its own, found the way a rank finds it; its optimizer's steps are counted."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClient, environment, optimizer_steps
from holdfast.fault_tolerance.board import Board, Identity
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from holdfast.fault_tolerance.timeouts.learned_timeouts import Floors

NO_FLOORS = Floors(0.0, 0.0)


@pytest.fixture
def config() -> FaultToleranceConfig:
    """The settings of the job. Change them before `board` is used."""
    return FaultToleranceConfig(rank_section_timeouts={"setup": 600, "step": 180.0, "free": None})


@pytest.fixture
def board(shm: Path, config: FaultToleranceConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """This process is rank 2 of a job with these settings, as its launcher would have it."""
    board = Board.create(str(shm / "2.board"), configured_timeouts(config, initial_set_by_user=True))
    board.bind_process(Identity(os.getpid(), 1, 2, 2, 0, time.monotonic_ns()))
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, board.path)
    monkeypatch.setenv(environment.CONFIG, json.dumps(config.to_dict()))
    yield board
    board.close()


@pytest.fixture
def client(board: Board) -> Iterator[RankMonitorClient]:
    """An initialised client on `board`, learning without floors."""
    client = RankMonitorClient(learned_floors=NO_FLOORS)
    client.init_workload_monitoring()
    yield client
    client.shutdown_workload_monitoring()


# -- a process whose optimizer's steps are counted, as the launcher's prologue has them counted in a rank

ASKED = "HOLDFAST_OPTIMIZER_STEPS"
Arm = Callable[..., Any]


def prologue(name: str) -> Any:
    """A file of the launcher's prologue, as a rank has it: not among the imported modules."""
    spec = importlib.util.spec_from_file_location(name, f"{PROLOGUE}/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has not counted yet, and no client was in it; afterwards torch has the hooks that it had."""
    for name, value in (("_taken", False), ("_counted", None), ("_ended", None)):
        monkeypatch.setattr(optimizer_steps, name, value)
    from torch.optim import optimizer as torchs

    hooks = torchs._global_optimizer_post_hooks
    before = dict(hooks)
    yield
    for number in [number for number in hooks if number not in before]:
        del hooks[number]
    if optimizer_steps._counted is not None:
        optimizer_steps._counted.detach()


@pytest.fixture
def arm(fresh: None) -> Arm:
    """Arms this process, with `save`, as a rank whose launcher asks for steps to be counted."""

    def arm(save: Any = None) -> None:
        environment = {ASKED: "1", "OTHER": "kept"}
        prologue("optimizer_hook").arm(environment, save)
        assert environment == {"OTHER": "kept"}

    return arm
