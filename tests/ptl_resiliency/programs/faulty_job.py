"""Trains the digits with `HoldfastCallback` and the one for sections; faults come from HOLDFAST_FAULT, at points of the
training.

Arguments: a folder, and the cycle in which rank 1 gets SIGTERM after its second batch. The points: `step` and
`validation` inside the model's methods, `save` with half of a checkpoint written. At the end rank 0 keeps the weights
in FOLDER/weights.pt and says what it resumed from on the way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "lightning"))
from digits import Classifier, Digits

from holdfast.ptl_resiliency import FaultToleranceSectionsCallback, HoldfastCallback
from holdfast.testing import Faults

STEPS = 60
FOLDER, CYCLE = Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
faults = Faults.from_env()


class Model(Classifier):
    """With points for faults."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        faults.at_step(self.trainer.global_step, "step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and not self.trainer.sanity_checking:
            faults.at_step(self.trainer.global_step, "validation")
        super().validation_step(batch, batch_idx)


class Data(Digits):
    """Quick to load: the ranks start often."""

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(3)
        return torch.rand(1797, 64, generator=random), torch.randint(10, (1797,), generator=random)


class HalfWritten(TorchCheckpointIO):
    """A disk so slow that a fault finds half of the checkpoint written."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"half of a checkpoint")
        faults.at_step(checkpoint["global_step"], "save")
        torch.save(checkpoint, path)


class Story(pl.Callback):
    """Where each start of the ranks began."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.first = trainer.global_step
        os.write(1, f"rank {trainer.global_rank} cycle {CYCLE} from {self.first}\n".encode())

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if sys.argv[2:] != [CYCLE]:
            return
        if trainer.global_rank == 1 and trainer.global_step == self.first + 2:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # the launcher reads a rank's wish to stop once a second, and later on a busy machine


torch.set_num_threads(1)
pl.seed_everything(1, verbose=False)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=STEPS,
    val_check_interval=10,
    limit_val_batches=4,
    use_distributed_sampler=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    default_root_dir=FOLDER,
    plugins=[HalfWritten()],
    callbacks=[
        HoldfastCallback(),
        FaultToleranceSectionsCallback(exp_dir=FOLDER / "ft_state"),
        Story(),
        pl.callbacks.ModelCheckpoint(
            FOLDER / "saved", save_last=True, every_n_train_steps=5, enable_version_counter=False
        ),
    ],
)
model = Model()
trainer.fit(model, datamodule=Data(), ckpt_path="last")
if trainer.is_global_zero:
    torch.save(model.state_dict(), FOLDER / "weights.pt")
