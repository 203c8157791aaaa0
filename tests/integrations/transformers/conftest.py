"""A process that is a rank without a launcher, and a Hugging Face training of milliseconds for it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig, environment
from holdfast.fault_tolerance.board import Board, Identity
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts

from .small import IS_4_46

SECTIONS = {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}

Ranked = Callable[..., Board]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No progress bars, no other ranks, and handlers as they were."""
    places = ("RANK", "LOCAL_RANK", "WORLD_SIZE", FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    for name in (*places, "FAULT_TOL_FINISHED_FLAG_FILE"):
        monkeypatch.delenv(name, raising=False)
    if IS_4_46:  # it loads the random state as torch allowed before 2.6
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ranked(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranked]:
    """Makes this process rank 0 of a job, as its launcher would have it; with these settings."""
    boards = list[Board]()

    def be_ranked(**settings: Any) -> Board:
        config = FaultToleranceConfig(**settings)
        limits = configured_timeouts(config, initial_set_by_user=True)
        board = Board.create(str(shm / f"{len(boards)}.board"), limits)
        board.bind_process(Identity(os.getpid(), 1, 0, 0, 0, time.monotonic_ns()))
        monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, board.path)
        monkeypatch.setenv(environment.CONFIG, json.dumps(config.to_dict()))
        boards.append(board)
        return board

    yield be_ranked
    for board in boards:
        board.close()
