"""Models and a trainer that take no time, for tests that run Lightning in this process, with one rank."""

from __future__ import annotations

import csv
import logging
import warnings
from collections import defaultdict
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
BATCHES = 20
"""Training batches in an epoch."""
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


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
        return DataLoader(TensorDataset(torch.zeros(2 * BATCHES, 4)), batch_size=2)


class At(pl.Callback):
    """Does something after the batch that was the `step`-th."""

    def __init__(self, step: int, deed: Callable[[pl.Trainer], object]) -> None:
        self._step, self._deed = step, deed

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step == self._step:
            self._deed(trainer)


def keeper(folder: Path, **kwargs: Any) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, **kwargs)


def saving(folder: Path, every: int = 5) -> Any:
    """Lightning's callback that saves every so many steps, and keeps `last.ckpt`. Needs enable_checkpointing=True."""
    return pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=every, save_last=True)


def trainer(tmp_path: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    """One rank, no progress bar. Without a `Checkpoint` among the callbacks it keeps no checkpoints."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "max_epochs": -1 if "max_steps" in kwargs else 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, pl.callbacks.Checkpoint) for each in callbacks),
        "default_root_dir": tmp_path,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(callbacks=list(callbacks), **(settings | kwargs))


# -- metrics as loggers have written them: read back from their files

Values = dict[str, list[tuple[int, float]]]
"""Name → (step, value), in the order of writing."""


def of_csv(folder: Path) -> Values:
    (file,) = folder.rglob("metrics.csv")
    found: Values = defaultdict(list)
    with file.open() as lines:
        for row in csv.DictReader(lines):
            for name, value in row.items():
                if name != "step" and value:
                    found[name].append((int(row["step"]), float(value)))
    return found


def of_tensorboard(folder: Path) -> Values:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
