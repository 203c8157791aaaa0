"""The sixth program of the corpus: FSDP2 with sharded checkpoints, exact to the last bit.

argv as for `program`. A worker process iterates over the rows until there are no more, every rank saves its shards with
torch's distributed checkpoint, and the launcher gets heartbeats only. The names are arbitrary, as in `program`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, row_of
from benchmarks.programs.rank_client import connected_client

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # seconds, and optimizers import it at their first use
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402


class Stream(IterableDataset[torch.Tensor]):
    """This rank's rows, as long as there are files."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self._first, TOTAL + 1):
            path = Path(point.path("data", "step", step, str(folder / "data")))
            if not path.exists():
                return
            own = range(point.rank, SHARDS, point.world)
            yield torch.tensor(row_of(step, own, int(path.read_text())), dtype=torch.float64)


class Leaf(torch.nn.Module):
    """One sharded layer."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.nn.Parameter(torch.zeros(WIDTH // 2, dtype=torch.float64))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        """Its value."""
        return (self.state * row).sum()


class Tree(torch.nn.Module):
    """The model: two layers, each with half of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Leaf(), Leaf()

    def forward(self, row: torch.Tensor, step: int) -> torch.Tensor:
        """Its value."""
        one = self.left(row[: WIDTH // 2])
        point.at("forward", step)
        return one + self.right(row[WIDTH // 2 :])


class Basket(dcp.FileSystemWriter):
    """The files of one checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(folder / f"dcp-{step}")
        self._step = step

    def write_data(self, plan: Any, planner: Any) -> Any:
        """This rank's files."""
        point.path("storage", "checkpoint", self._step, str(folder / f"part-{point.rank}"))
        return super().write_data(plan, planner)


class Orchard:
    """One rank."""

    def __init__(self, client: Any) -> None:
        self._client = client
        point.at("init")
        dist.init_process_group("gloo", timeout=point.group_timeout)
        self.tree = Tree()
        mesh = init_device_mesh("cpu", (point.world,))
        for module in (self.tree.left, self.tree.right, self.tree):
            fully_shard(module, mesh=mesh)
        self._optimizer = torch.optim.SGD(self.tree.parameters(), lr=0.25)
        self._done = point.saved_step()
        if self._done:
            dcp.load(self.tree.state_dict(), checkpoint_id=folder / f"dcp-{self._done}")
        self._join(torch.zeros(1), "init", 0)

    def grow(self) -> None:
        """All steps from the last checkpoint to the end."""
        rows = DataLoader(Stream(self._done + 1), batch_size=None, num_workers=1)
        for step, row in enumerate(rows, self._done + 1):
            self._one(step, row)
            self._client.send_heartbeat()
            if step % EVERY == 0:
                point.at("validation", step)
                self._join(torch.zeros(1), "validation", step)
                point.at("checkpoint", step)
                self._save(step)
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), "shutdown", TOTAL)
        halves = [leaf.state.full_tensor() for leaf in (self.tree.left, self.tree.right)]  # type: ignore[operator]
        point.write_result(torch.cat(halves).tolist())
        dist.destroy_process_group()

    def _one(self, step: int, row: torch.Tensor) -> None:
        point.at("step", step)
        loss = self.tree(row, step) * point.world  # FSDP divides by it
        point.hook(loss, "backward", step)
        point.at("backward", step)
        loss.backward()
        self._join(loss.detach().reshape(1), "collective", step)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _save(self, step: int) -> None:
        if (action := point.instead("collective", "checkpoint", step)) is not None:
            action(point, torch.zeros(1))
            return
        dcp.save(self.tree.state_dict(), storage_writer=Basket(step))
        point.commit(step)

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step)


if __name__ == "__main__":
    point.ward = Orchard(connected_client(who))
    point.ward.grow()
    point.finish()
