"""A job with a straggler. Its ranks train twice: first they may not stop, then they must.

Of several ranks, rank 1 is slow all the time; a rank alone becomes slow after 40 steps. Several ranks train once more
before that: with a model whose buffers DDP synchronises, and rank 0 slow outside of the step. Argument: a folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy

from holdfast.ptl_resiliency import StragglerDetectionCallback
from holdfast.ptl_resiliency.recipes import straggler_det_callback
from tests.ptl_resiliency.small import Small, keeper, trainer

FOLDER = Path(sys.argv[1])
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class LateToTheStep(Small):
    """Rank 0 comes late, and the others wait for its buffers."""

    def __init__(self) -> None:
        super().__init__(lambda step: time.sleep(0.02))
        self.norm = torch.nn.BatchNorm1d(4)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([self.norm(batch[0])], batch_idx)

    def on_train_batch_start(self, *batch: Any) -> None:
        time.sleep(0.15 if RANK == 0 else 0)


def step(number: int) -> None:
    slow = RANK == 1 or (RANKS == 1 and number >= 40)
    time.sleep(0.04 if slow else 0.004)


def train(callback: StragglerDetectionCallback, model: Small, name: str, **kwargs: Any) -> None:
    distributed: dict[str, Any] = (
        {"devices": RANKS, "strategy": DDPStrategy(process_group_backend="gloo")} if RANKS > 1 else {}
    )
    job = trainer(FOLDER, callback, keeper(FOLDER / name), **distributed, **kwargs)
    try:
        job.fit(model)
    except SystemExit as end:
        print(
            f"{name}: rank {RANK} exits with {end.code} at {job.global_step}, {job.should_stop=}", flush=True
        )
        raise
    print(f"{name}: rank {RANK} trained {job.global_step} steps", flush=True)


if __name__ == "__main__":
    train(
        straggler_det_callback(0.2, stop_if_detected_straggler=False),
        Small(step),
        "goes_on",
        max_epochs=5 if RANKS > 1 else 3,
    )
    if RANKS > 1:
        relative = StragglerDetectionCallback(1.0, True, False, 3, 0.2, 0.2, True, stop_on="scores")
        train(relative, LateToTheStep(), "late", max_epochs=5)
        # A report needs several steps of each rank, and on a busy machine these take long.
        train(straggler_det_callback(0.5), Small(step), "stops", max_epochs=100)
    logger = CSVLogger(FOLDER)
    train(straggler_det_callback(0.2, stop_on="scores"), Small(step), "stops", max_epochs=20, logger=logger)
