"""The tenth program of the corpus: each weight has a rank that owns it, exact to the last bit.

argv as for `program`. Gradients are accumulated over four batches, with the forward pass computed again in the backward
pass. They are reduced to the owners, which step and broadcast. A thread reads ahead from a worker process, two ranks
alone exchange a moving average and evaluate, and a thread of each save writes, after a barrier. Names are arbitrary.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
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
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

PETALS, CELLS = 4, 4
"""Batches of a step; weights, each as a tensor."""


class Meadow(IterableDataset[torch.Tensor]):
    """Worker: the batches of each step, as long as there are files."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self._first, TOTAL + 1):
            path = Path(point.path("data", "step", step, str(folder / "data")))
            if not path.exists():
                return
            own, offset = range(point.rank, SHARDS, point.world), int(path.read_text())
            rows = [row_of(step, own[petal::PETALS], offset) or [0] * WIDTH for petal in range(PETALS)]
            yield torch.tensor(rows, dtype=torch.float64)


class Basin:
    """A thread that reads two steps ahead, and hands its errors on."""

    def __init__(self, meadow: DataLoader[torch.Tensor]) -> None:
        self.door = threading.Condition()
        self._full, self._error = deque[torch.Tensor](), list[Exception]()
        threading.Thread(target=self._pour, args=(iter(meadow),), daemon=True).start()

    def _pour(self, source: Iterator[torch.Tensor]) -> None:
        try:
            for batches in source:
                with self.door:
                    self.door.wait_for(lambda: len(self._full) < 2)
                    self._full.append(batches)
                    self.door.notify_all()
        except Exception as error:
            with self.door:
                self._error.append(error)
                self.door.notify_all()

    def drink(self) -> torch.Tensor:
        with self.door:
            self.door.wait_for(lambda: self._full or self._error)
            if not self._full:
                raise self._error[0]
            self.door.notify_all()
            return self._full.popleft()


class Brood(torch.nn.Module):
    def __init__(self, whole: torch.Tensor) -> None:
        super().__init__()
        self.cells = torch.nn.ParameterList(cell.clone() for cell in whole.chunk(CELLS))

    def forward(self, row: torch.Tensor, mark: int) -> torch.Tensor:
        point.at("forward", mark)
        return (torch.cat([*self.cells]) * row).sum()


class Hive:
    def __init__(self, client: Any) -> None:
        self._client = client
        with section(client, "swarm"):
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            self.scouts = sorted({point.chosen, (point.chosen + 1) % point.world})
            self.dance = dist.new_group(self.scouts)
            self._done = point.saved_step()
            self.brood = Brood(torch.tensor(point.get(self._done, WIDTH), dtype=torch.float64))
            self.lid, self.honey = threading.Lock(), self.whole()
            self._optimizer = torch.optim.SGD(self.brood.parameters(), lr=0.25)
            self._press: threading.Thread | None = None
            self._spilt = list[BaseException]()
            self.basin = Basin(DataLoader(Meadow(self._done + 1), batch_size=None, num_workers=1))
            self._join(torch.zeros(1), "init", 0)

    def whole(self) -> torch.Tensor:
        return torch.cat([*self.brood.cells]).detach()

    def summer(self) -> None:
        for step in range(self._done + 1, TOTAL + 1):
            with section(self._client, "forage"):
                point.at("step", step)
                self._forage(step, self.basin.drink())
                if step % 2 == 0:
                    self._ripen(step)
            self._client.send_heartbeat()
            if step % EVERY == 0:
                with section(self._client, "tasting"):
                    self._taste(step)
                with section(self._client, "comb"):
                    self._seal(step)
            elif step % EVERY == 2 and self._press is not None:
                with section(self._client, "comb"):
                    self._store(step - 2)
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), "shutdown", TOTAL)
        point.write_result(self.whole().tolist())
        dist.destroy_process_group()

    def _forage(self, step: int, batches: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        loss = torch.zeros(1, dtype=torch.float64)
        for petal, row in enumerate(batches):
            mark = step if petal == 2 else -1
            flight: Any = checkpoint(self.brood, row, mark, use_reentrant=False)
            point.hook(flight, "backward", mark)
            point.at("backward", mark)
            flight.backward()
            loss += flight.detach()
        point.at("team", step)
        if (action := point.instead("collective", "team", step)) is not None:
            action(point, loss)
        else:
            self.carry(range(CELLS))
        self._join(loss, "collective", step)
        for number, cell in enumerate(self.brood.cells):
            if number % point.world != point.rank:
                cell.grad = None
        self._optimizer.step()
        for number, cell in enumerate(self.brood.cells):
            dist.broadcast(cell.data, number % point.world)

    def carry(self, order: Any) -> None:
        """The gradients to their owners."""
        for number in order:
            dist.reduce(self.brood.cells[number].grad, number % point.world)

    def _ripen(self, step: int) -> None:
        """The average, which the first of two ranks hands to the second."""
        if point.rank not in self.scouts:
            return
        with self.lid:
            self.honey.lerp_(self.whole(), 0.5)
            point.at("exchange", step)
            if (action := point.instead("collective", "exchange", step)) is not None:
                action(point, self.honey)
            else:
                dist.broadcast(self.honey, self.scouts[0], group=self.dance)

    def _taste(self, step: int) -> None:
        """Two ranks evaluate, and the first one tells all."""
        opinion: list[Any] = [None]
        if point.rank in self.scouts:
            point.at("validation", step)
            marks: list[Any] = [None, None]
            if (action := point.instead("collective", "validation", step)) is not None:
                action(point, self.honey)
            else:
                dist.all_gather_object(marks, self.honey.sum().item(), group=self.dance)
            opinion = [marks]
        dist.broadcast_object_list(opinion, self.scouts[0])

    def _seal(self, step: int) -> None:
        """A barrier, and then a thread that saves."""
        if (action := point.instead("collective", "checkpoint", step)) is not None:
            action(point, torch.zeros(1))
        else:
            dist.barrier()
        point.at("checkpoint", step)
        self._press = threading.Thread(target=self._fill, args=(step, self.whole().tolist()), daemon=True)
        self._press.start()

    def _fill(self, step: int, state: list[float]) -> None:
        """Thread: the average stays as it is meanwhile."""
        try:
            with self.lid:
                point.put(step, state)
        except BaseException as error:
            self._spilt.append(error)

    def _store(self, step: int) -> None:
        assert self._press is not None
        self._press.join()
        if self._spilt:
            raise self._spilt[0]
        self._join(torch.ones(1), "checkpoint", step)
        point.commit(step)
        self._press = None

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step, self.dance)


if __name__ == "__main__":
    point.ward = Hive(connected_client(who))
    point.ward.summer()
    point.finish()
