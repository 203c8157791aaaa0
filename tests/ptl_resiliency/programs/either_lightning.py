"""Fits with the Lightning that is named, or one after the other with both. Arguments: a folder, the modules' names."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from without_extras import without_extras

FOLDER, NAMES = Path(sys.argv[1]), sys.argv[2:]
with without_extras():
    FRAMEWORKS = [import_module(name) for name in NAMES]

from holdfast.fault_tolerance.board import BoardReader  # noqa: E402
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR  # noqa: E402
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback  # noqa: E402


def model_of(pl: Any) -> Any:
    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", 1.0)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model()


def main() -> None:
    flag = Path(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"])
    told = {}
    for pl in FRAMEWORKS:
        flag.unlink(missing_ok=True)
        callbacks = [
            kind(True, True, exp_dir=FOLDER)
            for kind in (FaultToleranceCallback, FaultToleranceSectionsCallback)
        ]
        saved = pl.callbacks.ModelCheckpoint(FOLDER / pl.__name__, every_n_train_steps=5, save_last=True)
        early = pl.callbacks.EarlyStopping("loss", patience=2, check_on_train_epoch_end=True)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=50,
            callbacks=[*callbacks, saved, early],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model_of(pl), DataLoader(TensorDataset(torch.randn(10, 4)), batch_size=1))
        reader = BoardReader(os.environ[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR])
        board = reader.snapshot()
        reader.close()
        told[pl.__name__] = {
            "bases": isinstance(callbacks[0], pl.Callback),
            "step": board.step,
            "checkpoints": board.checkpoints,
            "flag": flag.exists(),
        }
    told["loaded"] = [name for name in ("lightning", "pytorch_lightning") if name in sys.modules]  # type: ignore[assignment]
    os.write(1, (json.dumps(told) + "\n").encode())


if __name__ == "__main__":
    main()
