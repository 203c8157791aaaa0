"""The program that the faults are done to: a small training on gloo, as people write them, exact to the last bit.

argv: whose client it uses ("holdfast", "nvrx" or "" for none), and its folder. What is done to it, and where, is in the
environment (`point`). Data is a function of the step and of one of `SHARDS`, which the ranks share out among them, so
the result is the same however many there are (`expected`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults.point import Point

who, folder = sys.argv[1], Path(sys.argv[2])
point = Point(folder)
point.at("import")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from benchmarks.faults.expected import SHARDS, numbers, shown  # noqa: E402
from benchmarks.faults.reducing import Reducing  # noqa: E402
from benchmarks.faults.scenarios import EVERY, TOTAL  # noqa: E402

client: Any = None


class Numbers(Dataset[torch.Tensor]):
    """One item for each step: what this rank's shards add up to. The file is read each time, as datasets do."""

    def __init__(self, first: int, phase: str) -> None:
        self._first, self._phase = first, phase

    def __len__(self) -> int:
        return TOTAL - self._first if self._phase == "step" else 1

    def __getitem__(self, index: int) -> torch.Tensor:
        step = self._first + index + (self._phase == "step")
        path = point.reads(self._phase, step, str(folder / "data"))
        offset = int(Path(path).read_text())
        return torch.tensor(
            [
                sum(column)
                for column in zip(*(numbers(step, shard + offset) for shard in _shards()), strict=True)
            ],
            dtype=torch.float64,
        )


def _shards() -> range:
    return range(int(os.environ["RANK"]), SHARDS, int(os.environ["WORLD_SIZE"]))


def connect() -> None:
    """To the monitor, where there is one."""
    global client
    if who == "holdfast":
        from holdfast.fault_tolerance import RankMonitorClient
    elif who == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    else:
        return
    client = RankMonitorClient()
    client.init_workload_monitoring()


@contextmanager
def section(name: str) -> Iterator[None]:
    """A section of the client, as both clients have it."""
    if client is not None:
        client.start_section(name)
    yield
    if client is not None:
        client.end_section(name)


def load(path: Path) -> tuple[int, list[float]]:
    """The last checkpoint."""
    with open(point.reads("load", 0, str(path))) as file:
        found = json.load(file)
    return found["step"], found["weights"]


def save(step: int, weights: torch.Tensor, rank: int, reducing: Reducing) -> None:
    """Every rank its own part; when all have done so, rank 0 says that it is complete."""
    part = folder / f"part-{rank}"
    text = json.dumps({"step": step, "weights": weights.tolist()})
    path = point.writes("checkpoint", step, str(part))
    if path:
        with open(path, "w") as file:
            file.write(text * (1 if path == str(part) else 4096))
            file.flush()
            if path == str(part):
                os.fsync(file.fileno())
    reducing.barrier("checkpoint", step)
    if rank == 0:
        part.replace(folder / "checkpoint")


def validate(step: int, weights: torch.Tensor, reducing: Reducing) -> None:
    """One batch, and a sum over all ranks."""
    for batch in DataLoader(Numbers(step, "validation"), batch_size=None, num_workers=point.workers):
        point.at("validation", step)
        reducing.all_reduce((weights * batch).sum().reshape(1), "validation", step)


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


def begin() -> tuple[Reducing, torch.nn.Parameter, Descent | torch.optim.Optimizer, int]:
    """Meet the other ranks, and load."""
    with section("setup"):
        point.at("init")
        dist.init_process_group("gloo", timeout=point.patience)
        reducing = Reducing(point)
        first, weights = load(folder / "checkpoint")
        model = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float64))
        dist.broadcast(model.data, 0)
        reducing.begin()
    optimizer = Descent(model) if who else torch.optim.SGD([model], lr=0.25)
    return reducing, model, optimizer, first


def train() -> None:
    """All steps from the last checkpoint to the end."""
    reducing, model, optimizer, first = begin()
    rank = dist.get_rank()
    batches = iter(DataLoader(Numbers(first, "step"), batch_size=None, num_workers=point.workers))
    for step in range(first + 1, TOTAL + 1):
        if point.leaves_loop(step):
            break
        with section("step"):
            with section("data_loading"):
                batch = next(batches)
            point.at("step", step)
            optimizer.zero_grad()
            loss = (model * batch).sum()
            point.hooks(loss, step)
            loss.backward()
            assert model.grad is not None
            reducing.all_reduce(model.grad, "collective", step)
            optimizer.step()
        if client is not None:
            client.heartbeat(step) if who == "holdfast" else client.send_heartbeat()
        if step % EVERY == 0:
            with section("validation"):
                validate(step, model.data, reducing)
            with section("checkpointing"):
                save(step, model.data, rank, reducing)
    point.at("shutdown", TOTAL)
    reducing.barrier("shutdown", TOTAL)
    if rank == 0:
        (folder / "result").write_text(shown(model.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    connect()
    train()
    point.done()
