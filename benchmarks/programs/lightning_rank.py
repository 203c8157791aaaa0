"""One rank that trains steps of 2 ms with Lightning, alternately without callbacks, with ours, and with empty ones of
Lightning's; prints what a step takes in each turn (seconds, the median of its steps)."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch

from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)

STEP = 0.002
STEPS = 400
TURNS = int(sys.argv[1])
for name in ("lightning.pytorch", "nemo_logger"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Busy(pl.LightningModule):
    """A step takes 2 ms, whatever the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.began: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        began = perf_counter()
        self.began.append(began)
        loss = self.layer(batch).sum()
        while perf_counter() - began < STEP:
            pass
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def callbacks(folder: str) -> list[Any]:
    return [
        FaultToleranceCallback(autoresume=False, calculate_timeouts=True, exp_dir=folder),
        FaultToleranceSectionsCallback(autoresume=False, calculate_timeouts=True, exp_dir=folder),
        StragglerDetectionCallback(300.0, True, True, 5, 0.7, 0.7, False),
        PreemptionCallback(),
    ]


def seconds_per_step(chosen: list[Any]) -> list[float]:
    model = Busy()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        callbacks=chosen,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(STEPS, 2)))
    # The first steps warm up.
    return [later - sooner for sooner, later in zip(model.began[50:], model.began[51:], strict=False)]


KINDS: dict[str, Callable[[str], list[Any]]] = {
    "without": lambda folder: [],
    "with": callbacks,
    "empty": lambda folder: [pl.Callback() for _ in range(4)],
}
torch.set_num_threads(1)
found: dict[str, list[float]] = {kind: [] for kind in KINDS}
with tempfile.TemporaryDirectory() as folder:
    for turn in range(TURNS):
        kinds = list(KINDS)
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:  # none always comes after the same one
            found[kind].append(median(seconds_per_step(KINDS[kind](folder))))
print(json.dumps(found), flush=True)
