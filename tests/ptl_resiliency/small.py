"""A model and a trainer that take no time, for tests that run Lightning in this process, with one rank."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

IS_2_4 = pl.__version__.startswith("2.4.")
AGAIN = int(IS_2_4)
"""Batches trained twice after a save in `on_train_batch_end`: Lightning 2.4 counts that batch as still to come."""
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Small(pl.LightningModule):
    """Linear regression; `seen` has the number of each batch that it was trained with.

    What is in a batch is made from its number: Lightning continues to count after a resume, and the loader begins anew.
    """

    def __init__(self, during_step: Callable[[int], object] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[int] = []
        self._during_step = during_step or (lambda step: None)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self._during_step(self.global_step)
        self.seen.append(batch_idx)
        return self.layer(batch[0] + batch_idx / 100.0).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> DataLoader[Any]:
        """Twenty batches."""
        return DataLoader(TensorDataset(torch.zeros(40, 4)), batch_size=2)


class At(pl.Callback):
    """Does something after the batch that was the `step`-th."""

    def __init__(self, step: int, deed: Callable[[pl.Trainer], object]) -> None:
        self._step, self._deed = step, deed

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step == self._step:
            self._deed(trainer)


def keeper(folder: Path, **kwargs: Any) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, **kwargs)


def trainer(tmp_path: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    """One rank, no progress bar. Without a `ModelCheckpoint` among the callbacks it keeps no checkpoints."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(callbacks=list(callbacks), **(settings | kwargs))
