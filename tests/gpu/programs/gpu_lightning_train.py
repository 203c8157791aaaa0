"""A Lightning training with the bundled callbacks: it hangs in cycle 0, is killed in cycle 1, then trains to its end.

    gpu_lightning_train.py CHECKPOINTS STEPS [--resumed]

A step depends on its number alone, so a resumed training must reach the very weights of an undisturbed one. With
`--resumed` there is no fault, and both weights are reported.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import gpu_device
import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

from holdfast.ptl_resiliency import FaultToleranceCallback, PreemptionCallback, StragglerDetectionCallback

folder, steps = sys.argv[1], int(sys.argv[2])
is_resumed = "--resumed" in sys.argv
cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
HANG, KILL = 2, 4  # steps


class Learner(pl.LightningModule):
    def __init__(self, has_faults: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(16, 4)
        self.has_faults = has_faults

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        step = self.global_step
        if self.has_faults:
            gpu_device.mark("step", step=step)
            time.sleep(0.02)
            if (cycle, step) == (0, HANG):
                gpu_device.hang_in_synchronize()
            if (cycle, step) == (1, KILL):
                os.kill(os.getpid(), signal.SIGKILL)
        given = torch.arange(16.0, device=self.device).roll(step) / 16
        return (self.layer(given) - step % 3).pow(2).mean()

    def train_dataloader(self) -> list[torch.Tensor]:
        return [torch.zeros(1)] * steps

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def weights(self) -> list[float]:
        return [float(value) for value in torch.cat([each.flatten() for each in self.parameters()])]


def fit(callbacks: list[pl.Callback], path: str | None) -> Learner:
    learner = Learner(has_faults=bool(callbacks) and not is_resumed)
    trainer = pl.Trainer(
        accelerator="cpu" if gpu_device.DRY else "gpu",
        devices=1,
        max_steps=steps,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(learner, ckpt_path=path)
    return learner.cpu()


bundled = [
    FaultToleranceCallback(autoresume=False, calculate_timeouts=False),
    PreemptionCallback(),
    StragglerDetectionCallback(),
    pl.callbacks.ModelCheckpoint(dirpath=folder, save_last=True, every_n_train_steps=1, save_top_k=-1),
]
learner = fit(bundled, "last")
if is_resumed:
    gpu_device.mark("trained", weights=learner.weights(), undisturbed=fit([], None).weights())
