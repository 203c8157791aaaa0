"""A small Lightning training as a NeMo-Run task: `run.Partial(train, trainer=..., folder=...)`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import nemo_run as run
import torch

from tests.integrations.nemo_run.plain_training import RANK, fail_if_due, note


class WandbStandIn(pl.loggers.Logger):
    """In place of `WandbLogger`, which needs wandb and a server: it has the id that `WandbPlugin` has given it."""

    name = version = ""  # abstract properties otherwise

    def __init__(self, name: str, id: str | None = None, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.name, self.version = name, id or ""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


def wandb_logger(name: str) -> Any:
    return run.Config(WandbStandIn, name=name)


class Line(pl.LightningModule):
    def __init__(self, folder: Path, faults: list[str]) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.folder, self.faults = folder, faults

    def on_train_start(self) -> None:
        note(self.folder, f"from step {self.global_step}")
        if isinstance(self.logger, WandbStandIn):
            note(self.folder, f"is run {self.logger.version}")

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        fail_if_due(self.folder, self.faults, self.global_step + 1)
        time.sleep(0.1)
        if RANK == 0:
            (self.folder / "saved").write_text(str(self.global_step))
        loss: torch.Tensor = self.line(batch).square().mean()
        return loss

    def on_fit_end(self) -> None:
        note(self.folder, f"fit ends at step {self.global_step}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(trainer: pl.Trainer, folder: str, faults: list[str]) -> None:
    torch.manual_seed(1)
    data = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=2)
    trainer.fit(Line(Path(folder), faults), data, ckpt_path="last")
