"""The third program of the corpus: tensor and data groups on gloo, exact to the last bit. Unseen faults use it.

argv as for `program`. Two ranks of a tensor group share the columns of the weights and sum in the forward and the
backward pass of their own autograd functions; a hook of the parameter begins the sum over the data group. Each rank has
a data loader with worker processes and a process of its own that writes checkpoints. One rank in turn evaluates. Names
are words of other languages, sections too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, numbers, row_of
from benchmarks.programs.rank_client import connected_client, section

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402


class Vorrat(IterableDataset[torch.Tensor]):
    """This rank's rows, one for each step, in a worker process."""

    def __init__(self, first: int, shards: range, columns: slice) -> None:
        self._first, self._shards, self._columns = first, shards, columns

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(self._first, TOTAL + 1):
            row = row_of(step, self._shards, point.offset(step))
            yield torch.tensor(row[self._columns], dtype=torch.float64)


class Kopie(torch.autograd.Function):
    """The same forward; the sum over the group backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        """As autograd calls it."""
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As autograd calls it."""
        found = gradients[0].clone()
        dist.all_reduce(found, group=ctx.group)
        return found, None


class Summe(torch.autograd.Function):
    """The sum over the group forward; the same backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        """As autograd calls it."""
        found = tensor.clone()
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As autograd calls it."""
        return gradients[0], None


def pisar(inbox: Connection, other: Connection) -> None:
    """Process: writes this rank's parts until its rank is gone."""
    other.close()
    try:
        while True:
            step, state = inbox.recv()
            point.put(step, state)
            inbox.send(step)
    except (EOFError, OSError):
        os._exit(1)


class Werk:
    """One rank: its two groups, its columns, its processes."""

    def __init__(self, client: Any) -> None:
        self.client = client
        with section(self.client, "начало"):
            self._done = point.saved_step()
            tensor_width = 2 if point.world % 2 == 0 else 1
            row, column = divmod(point.rank, tensor_width)
            width = WIDTH // tensor_width
            columns = slice(column * width, (column + 1) * width)
            shards = range(row, SHARDS, point.world // tensor_width)
            # Both kinds of processes begin before gloo has threads.
            loader = DataLoader(Vorrat(self._done + 1, shards, columns), batch_size=None, num_workers=1)
            self._rows = iter(loader)
            self._outbox, inbox = multiprocessing.get_context("fork").Pipe()
            self.saver = multiprocessing.get_context("fork").Process(
                target=pisar, args=(inbox, self._outbox), daemon=True
            )
            self.saver.start()
            inbox.close()
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            every = range(point.world)
            pairs = [[*every[k : k + tensor_width]] for k in range(0, point.world, tensor_width)]
            self.tensor_group = [dist.new_group(pair) for pair in pairs][row]
            stripes = [[*every[k::tensor_width]] for k in range(tensor_width)]
            self.data_group = [dist.new_group(stripe) for stripe in stripes][column]
            first = point.get(self._done, width)
            self.weights = torch.nn.Parameter(torch.tensor(first, dtype=torch.float64))
            self.weights.register_post_accumulate_grad_hook(self._bereit)
            self._step, self._works = 0, list[Any]()
            self._join(torch.zeros(1), None, "init", 0)

    def lauf(self) -> None:
        """All steps from the last checkpoint to the end."""
        for step in range(self._done + 1, TOTAL + 1):
            self._step = step
            with section(self.client, "étape nº1"):
                self._durchgang(step)
            self.client.send_heartbeat()
            if step % EVERY == 0:
                with section(self.client, "проверка/тест"):
                    self._pruefung(step)
                self._outbox.send((step, self.weights.tolist()))
                point.at("checkpoint", step)
            elif step % EVERY == 2 and step - 2 > self._done:
                with section(self.client, "保存"):
                    self._abschluss(step - 2)
        point.at("shutdown", TOTAL)
        parts = [torch.zeros_like(self.weights) for _ in range(dist.get_world_size(self.tensor_group))]
        dist.all_gather(parts, self.weights.detach(), group=self.tensor_group)
        self._join(torch.zeros(1), None, "shutdown", TOTAL)
        point.write_result(torch.cat(parts).tolist())
        dist.destroy_process_group()

    def _durchgang(self, step: int) -> None:
        """One step."""
        with section(self.client, "データ"):
            row = next(self._rows)
        point.at("step", step)
        self.weights.grad = None
        source = Kopie.apply(row.requires_grad_(), self.tensor_group)
        point.at("forward", step)
        loss = Summe.apply((source * self.weights).sum().reshape(1), self.tensor_group).sum()
        point.at("backward", step)
        point.hook(loss, "backward", step)
        loss.backward()
        point.at("team", step)
        while self._works:
            self._works.pop().wait()
        self._join(loss.detach().reshape(1), None, "collective", step)
        with torch.no_grad():
            assert self.weights.grad is not None
            self.weights.sub_(0.25 * self.weights.grad)

    def _bereit(self, weights: torch.Tensor) -> None:
        """Hook: the gradient is complete on this rank."""
        assert weights.grad is not None
        if (joint := point.joint("team", self._step)) is not None:
            joint(point, weights.grad, self.data_group)
        if (action := point.instead("collective", "team", self._step)) is not None:
            action(point, weights.grad)
        else:
            self._works.append(dist.all_reduce(weights.grad, group=self.data_group, async_op=True))

    def _pruefung(self, step: int) -> None:
        """One rank in turn evaluates, and tells the others."""
        root = step // EVERY % point.world
        found = [sum(numbers(step, 0)) if point.rank == root else None]
        point.at("validation", step)
        if (joint := point.joint("validation", step)) is not None:
            joint(point, torch.zeros(8), None)
        dist.broadcast_object_list(found, src=root)

    def _abschluss(self, step: int) -> None:
        """Wait for the parts of all ranks, which are a checkpoint then."""
        self._outbox.recv()
        dist.barrier()
        point.commit(step)

    def _join(self, tensor: torch.Tensor, group: Any, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor, group=group), tensor, phase, step, self.data_group)


if __name__ == "__main__":
    point.ward = Werk(connected_client(who))
    point.ward.lauf()
    point.finish()
