"""Trainings to be preempted in the process of a test. Their loader resumes where it was, so they end bitwise alike."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, Sampler

from holdfast.ptl_resiliency import PreemptionCallback
from tests.ptl_resiliency.small import trainer

RECEIVED = "Received signal 15, initiating graceful stop"
DETECTED = "Preemption detected, saving checkpoint and exiting"
BATCHES, EPOCHS = 6, 2
"""Of the training. A validation of 3 batches after every third."""
ALL = BATCHES * EPOCHS


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How often the log has a line with this text."""
    return sum(text in line for line in caplog.messages)


class Numbers(Dataset[Any]):
    """Item i is a row that no other item has."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index % 5, index % 3, 1.0])


class Resumable(Sampler[int]):
    """Shuffled by epoch; begins after the items that were trained with."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.epoch, self.skip, self._rank, self._ranks = 0, 0, rank, ranks

    def __len__(self) -> int:
        return 4 * BATCHES // self._ranks

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(4 * BATCHES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        skip, self.skip = self.skip, 0
        return iter(order[self._rank :: self._ranks][skip:])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class StatefulLoader(DataLoader[Any]):
    """Lightning asks it where it is when a checkpoint is saved."""

    _given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._given = self.sampler.skip // (self.batch_size or 1)  # type: ignore[attr-defined]
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self._given % len(self), "epoch": self.sampler.epoch + self._given // len(self)}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.skip = state["given"] * (self.batch_size or 1)  # type: ignore[attr-defined]
        self.sampler.epoch = state["epoch"]  # type: ignore[attr-defined]


class Learner(pl.LightningModule):
    """`trained` has the sums of the batches it was trained with; `deeds` are done at a moment like `train 3`."""

    def __init__(self, deeds: dict[str, Callable[[], object]] | None = None, workers: int = 0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(4, 1)
        self.trained: list[float] = []
        self.validations = 0
        self._validated = 0
        self._deeds = dict(deeds or {})
        self._workers = workers

    def _moment(self, name: str) -> None:
        self._deeds.pop(name, lambda: None)()

    def on_fit_start(self) -> None:
        self._moment("fit start")

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self._moment(f"train {self.global_step}")
        self.trained.append(float(batch.sum()))
        return (self.layer(batch / 24.0) - 1.0).pow(2).mean()

    def on_train_epoch_end(self) -> None:
        self._moment(f"epoch {self.current_epoch}")

    def on_validation_start(self) -> None:
        self._validated = 0
        self._moment(f"validation at {self.global_step}")

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self._moment(f"validation at {self.global_step} batch {batch_idx}")
        self._validated += 1
        self.log("val", self.layer(batch / 24.0).mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if self._validated == 3:
            self.validations += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> StatefulLoader:
        ranks = self.trainer.world_size
        sampler = Resumable(self.trainer.global_rank, ranks)
        return StatefulLoader(
            Numbers(),
            batch_size=4 // ranks,
            sampler=sampler,
            num_workers=self._workers,
            persistent_workers=False,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Numbers(), batch_size=8)


def weights(model: Learner) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def fit(
    folder: Path,
    deeds: dict[str, Callable[[], object]] | None = None,
    *,
    callback: PreemptionCallback | None = None,
    **kwargs: Any,
) -> tuple[Learner, int | None]:
    """One start of the job: the model, and the exit code if it was left by SystemExit."""
    model = Learner(deeds, kwargs.pop("workers", 0))
    checkpoint = kwargs.pop(
        "checkpoint", ModelCheckpoint(dirpath=folder, save_last=True, every_n_train_steps=2)
    )
    preemption = callback or PreemptionCallback()
    callbacks = [preemption, *kwargs.pop("callbacks", []), *([checkpoint] if checkpoint else [])]
    settings: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "val_check_interval": 3,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 2,
    }
    job = trainer(folder, *callbacks, **(settings | kwargs))
    try:
        job.fit(model, ckpt_path="last" if checkpoint else None)
    except SystemExit as end:
        return model, end.code if isinstance(end.code, int) else 0
    return model, None


def term(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
