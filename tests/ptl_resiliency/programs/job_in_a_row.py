"""A training of 45 steps in jobs of 20 at most, resumed from its last checkpoint. Rank 1 does not see rank 0's folder.

Arguments: the folder for everything. Says what is on the rank's board when the first batch comes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.fault_tolerance.board import BoardReader
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from tests.ptl_resiliency.small import Small

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


class Watch(pl.Callback):
    """Ends the job after 20 steps, and shows the monitor's view of the limits at its first batch."""

    def __init__(self) -> None:
        self.batches = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        reader = BoardReader(os.environ[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR])
        limits = reader.snapshot().limits
        reader.close()
        told = {"rank": RANK, "first": trainer.global_step, "limits": [limits.initial, limits.subsequent]}
        told["sections"] = limits.sections
        told["out"] = limits.out_of_section
        os.write(1, (json.dumps(told) + "\n").encode())

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.batches += 1
        if self.batches == 20:
            trainer.should_stop = True


def main() -> None:
    state = FOLDER / ("state" if RANK == 0 else "another node/state")
    callbacks = [
        kind(True, True, exp_dir=state) for kind in (FaultToleranceCallback, FaultToleranceSectionsCallback)
    ]
    saved = pl.callbacks.ModelCheckpoint(FOLDER / "saved", every_n_train_steps=5, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=45,
        callbacks=[*callbacks, saved, Watch()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    last = FOLDER / "saved" / "last.ckpt"
    data = DataLoader(TensorDataset(torch.zeros(100, 4)), batch_size=1)
    trainer.fit(Small(), data, ckpt_path=str(last) if last.exists() else None)


if __name__ == "__main__":
    main()
