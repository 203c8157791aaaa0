"""A process that is a rank without a launcher: `ranked` gives it a board of its own, found the way a rank finds it.

`checkpoint` is one to resume from.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.board import Board
from tests.ptl_resiliency.small import TinyModel, saving, trainer

SECTIONS = {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `TinyModel` at step 5, from a job without supervision."""
    folder = tmp_path_factory.mktemp("checkpoint")
    trainer(folder, saving(folder, 5), max_steps=7).fit(TinyModel())
    (path,) = folder.glob("*step=5.ckpt")  # after its end Lightning would count the epoch as done
    return path


@pytest.fixture(autouse=True)
def _no_advice() -> Iterator[None]:
    """Lightning advises on the number of workers and the like."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.fixture
def config() -> FaultToleranceConfig:
    """The settings of the job. Change them before `ranked` is used."""
    return FaultToleranceConfig(rank_section_timeouts=dict(SECTIONS))


@pytest.fixture
def ranked(board: Board, monkeypatch: pytest.MonkeyPatch) -> Board:
    """This process is a rank of a job, as its launcher would have it. Learned limits have no floor."""
    monkeypatch.setenv("HOLDFAST_LEARNED_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_LEARNED_INITIAL_FLOOR", "0")
    return board
