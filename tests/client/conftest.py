"""A rank's environment: a board of its own, found the way a rank finds it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClient, environment
from holdfast.fault_tolerance.board import Board, Identity
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from holdfast.fault_tolerance.timeouts.learned_timeouts import Floors
from tests.board.conftest import shm
from tests.counting import arm, fresh

__all__ = ["arm", "fresh", "shm"]

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
