"""A process that is a rank without a launcher, and a training of milliseconds for it.

`ranked` gives this process a board of its own, found the way a rank finds it; `TinyModel` is a model that has the same
weights in each run; `quiet` are the trainer's arguments that keep it from writing files that no test reads;
`checkpoint` is one to resume from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.fault_tolerance import FaultToleranceConfig, environment
from holdfast.fault_tolerance.board import Board, Identity
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.timeouts.effective_timeouts import configured_timeouts
from tests.counting import arm, fresh  # noqa: F401

SECTIONS = {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}
BATCHES = 20
"""Training batches in an epoch."""


class TinyModel(pl.LightningModule):
    """A linear model. `on_step` is called in each training step with the trainer and the number of the batch."""

    def __init__(
        self,
        on_step: Callable[[Any, int], None] | None = None,
        on_validation: Callable[[Any, int], None] | None = None,
    ) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(4, 1)
        self._on_step, self._on_validation = on_step, on_validation

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self._on_step is not None:
            self._on_step(self.trainer, batch_idx)
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        if self._on_validation is not None:
            self._on_validation(self.trainer, batch_idx)
        self.log("loss", self._loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test", self._loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0])

    def _loss(self, batch: Any) -> Any:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return loader(BATCHES)

    def val_dataloader(self) -> Any:
        return loader(2)

    test_dataloader = predict_dataloader = val_dataloader


def loader(batches: int) -> Any:
    """So many batches, the same in each run."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(2 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)


def quiet_arguments(folder: Path) -> dict[str, Any]:
    """Arguments of a trainer on one CPU that shows and logs nothing, and writes nowhere else."""
    return {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": str(folder),
        "num_sanity_val_steps": 0,
    }


@pytest.fixture
def quiet(tmp_path: Path) -> dict[str, Any]:
    """`quiet_arguments` for the test's folder."""
    return quiet_arguments(tmp_path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `TinyModel` at step 5, from a job without supervision."""
    folder = tmp_path_factory.mktemp("checkpoint")
    arguments = {**quiet_arguments(folder), "enable_checkpointing": True}
    trainer = pl.Trainer(max_steps=7, callbacks=[saving(folder, 5)], **arguments)
    trainer.fit(TinyModel())
    (path,) = folder.glob("*step=5.ckpt")  # after its end Lightning would count the epoch as done
    return path


def saving(folder: Path, every: int = 5) -> Any:
    """Lightning's callback that saves every so many steps, and keeps `last.ckpt`. Needs enable_checkpointing=True."""
    return pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=every, save_last=True)


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
def ranked(config: FaultToleranceConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """This process is the only rank of a job, as its launcher would have it. Learned limits have no floor."""
    folder = Path(tempfile.mkdtemp(prefix="hf-test-ptl-", dir="/dev/shm"))
    board = Board.create(str(folder / "0.board"), configured_timeouts(config, initial_set_by_user=True))
    board.bind_process(Identity(os.getpid(), 1, 0, 0, 0, time.monotonic_ns()))
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, board.path)
    monkeypatch.setenv(environment.CONFIG, json.dumps(config.to_dict()))
    monkeypatch.setenv("HOLDFAST_LEARNED_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_LEARNED_INITIAL_FLOOR", "0")
    yield board
    board.close()
    shutil.rmtree(folder)
