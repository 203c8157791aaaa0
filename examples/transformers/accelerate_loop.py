"""A loop with accelerate that survives kills, hangs and preemption.

    ft_launcher --nproc-per-node=2 --max-restarts=3 accelerate_loop.py

Kill a rank, or send SIGTERM to the launcher and start it again: it resumes from its last complete checkpoint, and ends
with the same weights. Lines with `loop` are Holdfast's. See docs/transformers.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def train(folder: Path, steps: int, save_every: int) -> torch.nn.Module | None:
    """The model; None if the job was preempted."""
    set_seed(1)
    # The order of an epoch's data is then the same in each start.
    order = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=order)
    inputs = torch.randn(512, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def save(step: int) -> None:
        """Complete or absent: it gets the name that counts when all ranks have written."""
        final = folder / f"step-{step}"
        accelerator.save_state(f"{final}.partial")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            shutil.rmtree(final, ignore_errors=True)  # a damaged one that was skipped
            os.rename(f"{final}.partial", final)
        accelerator.wait_for_everyone()

    with holdfast.Loop() as loop:  # from here on the launcher watches over the rank
        step, newest = 0, loop.last_checkpoint(folder)
        if newest:
            accelerator.print(f"the training resumes from {newest}")
            accelerator.load_state(str(newest))
            step = int(newest.name.partition("-")[2])
        while step < steps and not loop.stopped:
            epoch, done = divmod(step, len(loader))
            loader.set_epoch(epoch)
            rest = skip_first_batches(loader, done)
            for features, targets in loop(itertools.islice(rest, steps - step)):
                loss = torch.nn.functional.mse_loss(model(features), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if loop.step(step) or step % save_every == 0 or step == steps:  # alive, and at this step
                    with loop.section("checkpointing"):
                        save(step)
        if loop.stopped:
            accelerator.print(f"preempted: the checkpoint of step {step} is complete")
        loop.finished()
    return accelerator.unwrap_model(model) if step == steps else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path("accelerate-run"), help="checkpoints")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    options = parser.parse_args()
    train(options.dir, options.steps, options.save_every)
