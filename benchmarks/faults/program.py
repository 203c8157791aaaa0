"""The first program of the corpus: a small data-parallel training on gloo, exact to the last bit.

argv: whose client it uses ("holdfast", "nvrx" or "" for none), and its folder. The fault is in the environment
(`injection`). Data is a function of the step and of one of `SHARDS`, which the ranks share, so the result is the same
on any number of ranks. The functions have arbitrary names: a name on a stack must not give a fault away.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, InjectionPoint, row_of
from benchmarks.programs.rank_client import connected_client, section

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

client: Any = None


class Series(Dataset[torch.Tensor]):
    """One item for each step: the sum of this rank's shards. The file is read each time, as datasets do."""

    def __init__(self, first: int, phase: str) -> None:
        self._first, self._phase = first, phase

    def __len__(self) -> int:
        return TOTAL - self._first if self._phase == "step" else 1

    def __getitem__(self, index: int) -> torch.Tensor:
        step = self._first + index + (self._phase == "step")
        own = range(point.rank, SHARDS, point.world)
        return torch.tensor(row_of(step, own, point.offset(step, self._phase)), dtype=torch.float64)


class Circle:
    """The program's collectives: the one place where a rank can take part in another one than the rest."""

    def __init__(self) -> None:
        self._some = dist.new_group() if point.kind == "left_out_of_group" and point.cycle == 0 else None

    def combine(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        """The sum over all ranks, in place."""
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step, self._some)

    def align(self, phase: str, step: int) -> None:
        """All ranks have reached this place."""
        point.combine(dist.barrier, torch.zeros(1), phase, step, self._some)


class Descent:
    """SGD at a rate of 1/4. torch's own costs each rank a second of imports: only where its steps are counted."""

    def __init__(self, model: torch.nn.Parameter) -> None:
        self._model = model

    def zero_grad(self) -> None:
        """As torch's."""
        self._model.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """As torch's."""
        assert self._model.grad is not None
        self._model.sub_(0.25 * self._model.grad)


def advance_b() -> tuple[Circle, torch.nn.Parameter, Descent | torch.optim.Optimizer, int]:
    """Meet the other ranks, and read the last checkpoint."""
    with section(client, "setup"):
        point.at("init")
        dist.init_process_group("gloo", timeout=point.group_timeout)
        circle = Circle()
        with open(point.path("storage", "init", 0, str(folder / "checkpoint"))) as file:
            found = json.load(file)
        model = torch.nn.Parameter(torch.tensor(found["weights"], dtype=torch.float64))
        dist.broadcast(model.data, 0)
        circle.combine(torch.zeros(1), "init", 0)
    return circle, model, Descent(model) if who else torch.optim.SGD([model], lr=0.25), found["step"]


def advance_c(step: int, weights: torch.Tensor, circle: Circle) -> None:
    """Validate: one batch, and a sum over all ranks."""
    for batch in DataLoader(Series(step, "validation"), batch_size=None, num_workers=point.workers):
        point.at("validation", step)
        circle.combine((weights * batch).sum().reshape(1), "validation", step)


def advance_d(step: int, weights: torch.Tensor, rank: int, circle: Circle) -> None:
    """Every rank saves its own part; when all have done so, rank 0 makes it the checkpoint."""
    part = folder / f"part-{rank}"
    text = json.dumps({"step": step, "weights": weights.tolist()})
    point.at("checkpoint", step)
    path = point.path("storage", "checkpoint", step, str(part))
    if path:
        with open(path, "w") as file:
            file.write(text * (1 if path == str(part) else 4096))
            file.flush()
            if path == str(part):
                os.fsync(file.fileno())
    circle.align("checkpoint", step)
    if rank == 0:
        part.replace(folder / "checkpoint")


def advance() -> None:
    """All steps from the last checkpoint to the end."""
    circle, model, optimizer, first = advance_b()
    rank = dist.get_rank()
    batches = iter(DataLoader(Series(first, "step"), batch_size=None, num_workers=point.workers))
    for step in range(first + 1, TOTAL + 1):
        with section(client, "step"):
            with section(client, "data_loading"):
                batch = next(batches)
            point.at("step", step)
            optimizer.zero_grad()
            loss = (model * batch).sum()
            point.hook(loss, "step", step)
            loss.backward()
            assert model.grad is not None
            circle.combine(model.grad, "collective", step)
            optimizer.step()
        client.heartbeat(step) if who == "holdfast" else client.send_heartbeat()
        if step % EVERY == 0:
            with section(client, "validation"):
                advance_c(step, model.data, circle)
            with section(client, "checkpointing"):
                advance_d(step, model.data, rank, circle)
    point.at("shutdown", TOTAL)
    circle.align("shutdown", TOTAL)
    point.write_result(model.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    client = connected_client(who)
    advance()
    point.finish()
