"""A loop with accelerate that survives kills, hangs and preemption.

    ft_launcher --nproc-per-node=2 --max-restarts=3 accelerate_loop.py

Kill a rank, or send SIGTERM to the launcher and start it again: it goes on from its last complete checkpoint, and ends
with the same weights. What it has of Holdfast: a client (three lines), a stop that all ranks agree on, and the last
complete checkpoint. See docs/transformers.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from holdfast.checkpoints import last_complete_on_all_ranks
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.stop import StopPoint, position


def train(folder: Path, steps: int, save_every: int) -> torch.nn.Module | None:
    """The model; None if the job was preempted."""
    set_seed(1)
    # The order of an epoch's data is then the same in each start.
    order = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=order)
    client = RankMonitorClient()
    client.init_workload_monitoring()  # with this line the launcher watches over the rank
    stop = StopPoint.find()
    if stop:
        signal.signal(signal.SIGTERM, lambda number, frame: stop.notice(number))
        stop.begin()

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
        client.checkpoint_saved(step)

    step = 0
    if newest := last_complete_on_all_ranks(folder):
        accelerator.print(f"the training resumes from {newest}")
        accelerator.load_state(str(newest))
        step = int(newest.name.partition("-")[2])
    batches = 0
    while step < steps:
        epoch, done = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for features, targets in skip_first_batches(loader, done):
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step, batches = step + 1, batches + 1
            client.heartbeat(step)  # the rank is alive, and at this step
            stops = stop is not None and stop.passes(position(batches))
            if stops or step % save_every == 0 or step == steps:
                save(step)
            if stops:
                accelerator.print(f"preempted: the checkpoint of step {step} is complete")
            if stops or step == steps:
                break
        if stops:
            break
    if stop:
        stop.end()
    client.shutdown_workload_monitoring()  # from here on the rank may take as long as it likes
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
