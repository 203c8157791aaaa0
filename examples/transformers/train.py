"""A small GPT-2 that learns to write Python, with transformers.Trainer: it survives kills, hangs and preemption.

    ft_launcher --nproc-per-node=2 --max-restarts=3 train.py
    python train.py --no-supervision

Kill a rank, or send SIGTERM to the launcher and start it again: it resumes from its last complete checkpoint, and ends
with the same weights. Nothing is downloaded: the text is Python's standard library, a token is a byte. See
docs/transformers.md.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from holdfast.integrations.transformers import FaultToleranceCallback, PreemptionCallback

CONTEXT = 32


class Text(Dataset[Any]):
    """Windows of the standard library's source."""

    def __init__(self, windows: int) -> None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"".join(path.read_bytes() for path in files[:20])[: windows * CONTEXT]
        self._windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._windows[index], "labels": self._windows[index]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", default="gpt2-run", help="checkpoints, learned timeouts and the final model")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument(
        "--no-supervision", action="store_true", help="without ft_launcher; preemption works as well"
    )
    options = parser.parse_args()

    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=1, n_head=2))
    callbacks: list[Any] = [PreemptionCallback()]
    if not options.no_supervision:
        # With a loop around ft_launcher the flag says when to stop: export FAULT_TOL_FINISHED_FLAG_FILE=...
        callbacks.append(FaultToleranceCallback())

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.dir,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            save_steps=options.save_every,
            save_total_limit=2,
            logging_steps=50,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=Text(2048),
        callbacks=callbacks,
    )
    trainer.train(
        resume_from_checkpoint=True
    )  # the last complete checkpoint; from the start if there is none
    trainer.save_model(os.path.join(options.dir, "final"))


if __name__ == "__main__":
    main()
