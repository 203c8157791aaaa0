"""A training of two epochs with 16 samples a step over all ranks; each rank writes down what it has trained.

resized.py lightning|transformers FOLDER

SAVED in the environment is when checkpoints are saved: `validation`, `epoch` or `step`. With KILL there each rank gets
kill -9 between the last step of the first epoch and the first one of the second.

From the step SLOW_FROM on each takes 1.5 seconds: a busy machine may be late with a signal in mid-epoch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
STEP_SAMPLES = 16
SAMPLES = 160
EPOCHS = 2
folder = Path(sys.argv[-1])
saved = os.environ.get("SAVED", "epoch")
slow_from = int(os.environ.get("SLOW_FROM", "1000"))


def note(step: int, samples: torch.Tensor) -> None:
    """What this rank trains in a step, which takes a moment."""
    with (folder / f"trained-{os.getpid()}").open("a") as file:
        file.write(f"{step} {' '.join(str(int(sample)) for sample in samples)}\n")
    time.sleep(0.01 if step < slow_from else 1.5)


def begin_epoch(number: int) -> None:
    if number and "KILL" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


def by_lightning() -> None:
    import lightning.pytorch as pl
    from digits import Classifier, Digits

    from holdfast.ptl_resiliency import PreemptionCallback

    class Numbered(Digits):
        def load(self) -> tuple[torch.Tensor, torch.Tensor]:
            count = SAMPLES * 5 // 4  # one in five is for validation
            return torch.arange(count).float()[:, None].expand(-1, 64), torch.arange(count) % 10

    class Noting(Classifier):
        def on_train_epoch_start(self) -> None:
            begin_epoch(self.current_epoch)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            note(self.global_step, batch[0][:, 0])
            return super().training_step(batch, batch_idx)

    when: Any = {"epoch": {"save_on_train_epoch_end": True}, "step": {"every_n_train_steps": 1}}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, devices=RANKS,
        callbacks=[PreemptionCallback(), pl.callbacks.ModelCheckpoint(folder, save_last=True, **when.get(saved, {}))],
    )  # fmt: skip
    trainer.fit(Noting(), datamodule=Numbered(STEP_SAMPLES // RANKS), ckpt_path="last")
    print(f"ends after step {trainer.global_step}\n", end="", flush=True)  # one write: two ranks print


def by_transformers() -> None:
    import transformers

    from holdfast.integrations.transformers import PreemptionCallback

    class Noting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            note(trainer.state.global_step, labels)
            return {"loss": self.layer(inputs).square().mean()}

    class Killing(transformers.TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begin_epoch(round(state.epoch))

    data: Any = [{"inputs": torch.ones(1), "labels": torch.tensor(number)} for number in range(SAMPLES)]
    trainer = transformers.Trainer(
        model=Noting(),
        args=transformers.TrainingArguments(
            output_dir=str(folder), num_train_epochs=EPOCHS, report_to="none", use_cpu=True, disable_tqdm=True,
            per_device_train_batch_size=STEP_SAMPLES // RANKS, dataloader_pin_memory=False,
            save_strategy="steps" if saved == "step" else "epoch", save_steps=1, save_total_limit=2,
        ),
        train_dataset=data,
        callbacks=[PreemptionCallback(), Killing()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=True)
    print(f"ends after step {trainer.state.global_step}\n", end="", flush=True)  # one write: two ranks print


if __name__ == "__main__":
    by_lightning() if sys.argv[1] == "lightning" else by_transformers()
