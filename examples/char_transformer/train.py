"""Trains a character transformer with DistributedDataParallel, watched by holdfast. Made to be copied.

    ft_launcher --nproc-per-node=2 examples/char_transformer/train.py --dir /tmp/run    # or: torchrun

What always holds: a run that is killed and started again with the same --dir and as many ranks resumes from its last
checkpoint and ends with exactly the weights, bit for bit, of an undisturbed run. Under ft_launcher a SIGTERM
(preemption, a time limit) stops all ranks after the same step, with a checkpoint of that step and exit code 0; the
program that requeues the job sees that it has finished by the file that FAULT_TOL_FINISHED_FLAG_FILE names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import checkpoint
import torch
import torch.distributed as dist
from data import VOCABULARY, Batches, load_text
from model import CharTransformer
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.testing import Faults

CONTEXT = 64
SEED = 1234


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small character transformer.")
    parser.add_argument("--dir", type=Path, required=True, help="checkpoints and the result go here")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=16, help="windows of text per rank and step")
    parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="seconds to wait in each step, to watch it train"
    )
    return parser.parse_args()


class Trainer:
    """Everything that a checkpoint holds, and one step of training."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device = device
        self.rank, world_size = dist.get_rank(), dist.get_world_size()
        text = load_text()
        held_out = len(text) // 20
        self.batches = Batches(text[:-held_out], CONTEXT, args.batch_size, self.rank, world_size, SEED)
        self.test = Batches(text[-held_out:], CONTEXT, 64, 0, 1, SEED)
        torch.manual_seed(SEED)
        model = CharTransformer(VOCABULARY, CONTEXT).to(device)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        # DDP rearranges the gradients after a process's first step, and with them the order of their sums over more
        # than two ranks. A step that changes nothing gets that over with, or a restart would differ in the last bits.
        if world_size > 2:
            self.backward(*self.batches.at(0))
        torch.manual_seed(SEED + 1 + self.rank)  # From here on each rank has dropout of its own.
        self.step = 0

    def backward(self, characters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(characters.to(self.device), following.to(self.device))
        loss.backward()
        return loss.detach()

    def train_step(self, characters: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        loss = self.backward(characters, following)
        self.optimizer.step()
        self.step += 1
        return loss

    def test_loss(self) -> float:
        self.model.eval()
        with torch.no_grad():
            characters, following = self.test.at(0)
            return float(self.model.module(characters.to(self.device), following.to(self.device)))

    def save(self, directory: Path) -> None:
        """Collective, because each rank has a random state of its own; rank 0 writes."""
        random_states = [torch.empty_like(self._random_state()) for _ in range(dist.get_world_size())]
        dist.all_gather(random_states, self._random_state())
        if self.rank == 0:
            state = {
                "step": self.step,
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random": random_states,
            }
            checkpoint.save(directory, self.step, state)

    def load(self, directory: Path) -> None:
        """Resumes from the newest checkpoint, the one that rank 0 finds; from the beginning when there is none."""
        state = checkpoint.load_newest(directory) if self.rank == 0 else None
        step = torch.tensor(state["step"] if state else -1)
        dist.broadcast(step, src=0)
        if step < 0:
            return
        if state is None:
            state = checkpoint.load(directory, int(step))
        self.step = state["step"]
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if len(state["random"]) == dist.get_world_size():
            self._set_random_state(state["random"][self.rank])
        else:
            self.say(
                f"the checkpoint is of {len(state['random'])} ranks: training continues, but not bit for bit"
            )
        self.say(f"resumed from the checkpoint of step {self.step}")

    # The generator that dropout draws from; the order of the data has its own.
    def _random_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state() if self.device.type == "cuda" else torch.get_rng_state()

    def _set_random_state(self, state: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state)
        else:
            torch.set_rng_state(state)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def train(args: argparse.Namespace, loop: holdfast.Loop, device: torch.device) -> Trainer:
    with loop.section("setup"):
        args.dir.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(args, device)
        trainer.load(args.dir)
    faults = Faults.from_env()  # For the demo and the tests; nothing unless HOLDFAST_FAULT is set.
    for step in loop(range(trainer.step, args.steps)):
        with loop.section("step"):
            with loop.section("data_loading"):
                faults.at_step(step, "data_loading")
                batch = trainer.batches.at(step)
                time.sleep(args.pace)
            loss = trainer.train_step(*batch)
        if trainer.step % 10 == 0:
            trainer.say(f"step {trainer.step:4d} of {args.steps}, loss {loss:.4f}")
        # True on all ranks after the same step, once any process was asked to stop.
        stops = loop.step(trainer.step)
        if stops or trainer.step % args.save_every == 0 or trainer.step == args.steps:
            with loop.section("checkpointing"):
                faults.at_step(trainer.step, "checkpointing")
                trainer.save(args.dir)
    return trainer


def write_result(trainer: Trainer, directory: Path) -> None:
    """The loss on text that was not trained on, and a digest of the weights, so that two runs can be compared."""
    loss = trainer.test_loss()
    digest = hashlib.sha256()
    for value in trainer.model.module.state_dict().values():
        digest.update(bytes(value.cpu().contiguous().view(torch.uint8).flatten().tolist()))  # needs no numpy
    trainer.say(f"finished, test loss {loss:.6f}")
    if trainer.rank == 0:
        result = {"steps": trainer.step, "test_loss": loss, "weights": digest.hexdigest()}
        (directory / "result.json").write_text(json.dumps(result))


def run(args: argparse.Namespace, loop: holdfast.Loop, device: torch.device) -> None:
    """Everything that needs the process group. The model is gone when this returns: were DDP the last to let go of
    the group, gloo's threads and this one could wait for each other forever, right after a checkpoint (torch 2.13).
    """
    trainer = train(args, loop, device)
    if trainer.step == args.steps:
        write_result(trainer, args.dir)
        loop.finished()  # Comes last: a reader of the flag may rely on all the rest.
    else:
        trainer.say(
            f"stopped after step {trainer.step}, which is saved; started again, training resumes from there"
        )


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank without a traceback.
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what the next line demands of cuBLAS
    torch.use_deterministic_algorithms(True)
    with holdfast.Loop() as loop:  # Plain torchrun has no monitor.
        # On a GPU gloo stays at hand for what is on the CPU (the random states).
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        run(args, loop, device)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
