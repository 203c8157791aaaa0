"""A plain DistributedDataParallel loop that is killed, hung or preempted and ends with the same weights. Copy it.

    export FAULT_TOL_FINISHED_FLAG_FILE=run/finished
    ft_launcher --nproc-per-node=2 --max-restarts=3 examples/plain_loop.py --dir run    # or: torchrun

Lines with `loop`, `checkpoints` or `faults` are Holdfast's; the rest is any training.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast import checkpoints
from holdfast.testing import Faults


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model with DistributedDataParallel.")
    parser.add_argument("--dir", type=Path, required=True, help="checkpoints go here")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="stands for real work")
    return parser.parse_args()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of the step and the rank, so there is no position in the data to save."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 16, generator=generator)
    return inputs, inputs.square().sum(1, keepdim=True)


def save(path: Path, step: int, model: Any, optimizer: Any) -> None:
    """Rank 0 writes. Only the newest two that are complete are kept; damaged ones do not count."""
    if dist.get_rank() != 0:
        return
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    with checkpoints.whole_file(path / f"step-{step:08d}.pt") as unfinished:
        torch.save(state, unfinished)
    complete = [each for each in sorted(path.glob("step-*.pt")) if not checkpoints.why_incomplete(each)]
    for old in complete[:-2]:
        old.unlink()


def load(path: Path | None, model: Any, optimizer: Any) -> int:
    if path is None:
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with holdfast.Loop() as loop, Faults.from_env() as faults:
        with loop.section("setup"):
            start = load(loop.last_checkpoint(args.dir), model, optimizer)
        for step in loop(range(start + 1, args.steps + 1)):
            faults.at_step(step)
            with loop.section("step"):
                inputs, targets = batch(step, dist.get_rank())
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                time.sleep(args.step_seconds)
            if loop.step(step) or step % args.save_every == 0 or step == args.steps:
                with loop.section("checkpointing"):
                    save(args.dir, step, model, optimizer)
        if loop.stopped:
            print(f"rank {dist.get_rank()} stops after step {step}", flush=True)
        loop.finished()


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    train(args)  # the model is gone when it returns: torch 2.13 can hang if it outlives the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
