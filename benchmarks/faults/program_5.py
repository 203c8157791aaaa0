"""The fifth program of the corpus: DDP, with torch's own checkpoints in a thread, exact to the last bit.

argv as for `program`. A worker process reads the rows, a scheduler sets the rate, one rank alone evaluates, and the
checkpoint is saved asynchronously in a group of its own. The names are arbitrary on purpose, as in `program`.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, row_of
from benchmarks.programs.rank_client import connected_client, section

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # seconds, and optimizers import it at their first use
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402


class Ledger(Dataset[torch.Tensor]):
    """This rank's rows, one for each step."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __len__(self) -> int:
        return TOTAL - self._first

    def __getitem__(self, index: int) -> torch.Tensor:
        step = self._first + index + 1
        own = range(point.rank, SHARDS, point.world)
        return torch.tensor(row_of(step, own, point.offset(step)), dtype=torch.float64)


class Quill(torch.nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, row: torch.Tensor, step: int) -> torch.Tensor:
        """Its value."""
        point.at("forward", step)
        return (self.state * row).sum()


class Vault(dcp.FileSystemWriter):
    """The files of one checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(folder / f"dcp-{step}")
        self._step = step

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Thread: this rank's files."""
        point.path("storage", "checkpoint", self._step, str(folder / f"part-{point.rank}"))
        return super().write_data(plan, planner)


class Loom:
    """One rank."""

    def __init__(self, client: Any) -> None:
        self._client, self._step = client, 0
        with section(self._client, "prep"):
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            self._aside = dist.new_group()
            self._done = point.saved_step()
            self._quill = Quill()
            if self._done:
                found = {"state": self._quill.state.data}
                dcp.load(found, checkpoint_id=folder / f"dcp-{self._done}", process_group=self._aside)
            self.net = DistributedDataParallel(self._quill)
            self._optimizer = torch.optim.SGD(self.net.parameters(), lr=0.25)
            self._rate = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._factor)
            self._saved: tuple[int, Future[Any]] | None = None
            self._join(torch.zeros(1), "init", 0)

    def weave(self) -> None:
        """All steps from the last checkpoint to the end."""
        rows = DataLoader(Ledger(self._done), batch_size=None, num_workers=1)
        for step, row in enumerate(rows, self._done + 1):
            self._step = step
            with section(self._client, "fit"):
                self._one(step, row)
            self._client.send_heartbeat()
            if step % EVERY == 0:
                with section(self._client, "eval"):
                    if point.rank == point.chosen:
                        point.at("validation", step)
                    self._join(torch.zeros(1), "validation", step)
                point.at("checkpoint", step)
                if step < TOTAL:
                    self._save(step)
            elif step % EVERY == 2 and self._saved is not None:
                self._settle(*self._saved)
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), "shutdown", TOTAL)
        point.write_result(self._quill.state.tolist())
        dist.destroy_process_group()

    def _one(self, step: int, row: torch.Tensor) -> None:
        point.at("step", step)
        self._optimizer.zero_grad()
        loss = self.net(row, step) * point.world  # DDP divides by it
        point.hook(loss, "backward", step)
        point.at("backward", step)
        loss.backward()
        self._join(loss.detach().reshape(1), "collective", step)
        self._optimizer.step()
        self._rate.step()

    def _factor(self, turn: int) -> float:
        """Of the scheduler."""
        point.at("team", self._step)
        return 1.0

    def _save(self, step: int) -> None:
        state = {"state": self._quill.state.detach(), f"seed-{point.rank}": torch.tensor([step])}
        saved = dcp.async_save(state, storage_writer=Vault(step), process_group=self._aside)
        self._saved = step, saved

    def _settle(self, step: int, saved: Future[Any]) -> None:
        with section(self._client, "persist"):
            saved.result()
            dist.barrier()
        point.commit(step)

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step)


if __name__ == "__main__":
    point.ward = Loom(connected_client(who))
    point.ward.weave()
    point.finish()
