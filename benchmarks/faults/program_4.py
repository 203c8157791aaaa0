"""The fourth program of the corpus: a pipeline in 1F1B order on gloo, exact to the last bit. Unseen faults use it.

argv as for `program`. Every rank is one stage; sends and receives are asynchronous and in flight during the next
microbatch. First and last stage have a group of their own, as for tied embeddings. A pool of threads reads the next
step's data and writes checkpoints. The launcher gets heartbeats only, or counts the steps of torch's optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, numbers, row_of
from benchmarks.programs.rank_client import connected_client

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

GOTAS = 4
"""Microbatches of a step."""


class Paso:
    """SGD at a rate of 1/4, where no launcher counts the steps of torch's own."""

    def __init__(self, state: torch.nn.Parameter) -> None:
        self._state = state

    @torch.no_grad()
    def step(self) -> None:
        """As torch's."""
        assert self._state.grad is not None
        self._state.sub_(0.25 * self._state.grad)


class Tuberia:
    """One stage: its neighbours, its weights, what is in flight."""

    def __init__(self, client: Any) -> None:
        self.client = client
        point.at("init")
        dist.init_process_group("gloo", timeout=point.group_timeout)
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        ends = sorted({0, self.last})
        pair = dist.new_group(ends)
        self.pair = pair if self.rank in ends else None
        self._done = point.saved_step()
        first = point.get(self._done, WIDTH)
        self.state = torch.nn.Parameter(torch.tensor(first, dtype=torch.float64))
        self._paso = Paso(self.state) if who else torch.optim.SGD([self.state], lr=0.25)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="hilo")
        self._saved: Future[None] | None = None
        self._flying: list[tuple[Any, torch.Tensor]] = []
        self._join(lambda: dist.barrier(), torch.zeros(1), "init", 0)

    def corre(self) -> None:
        """All steps from the last checkpoint to the end."""
        ahead = self._pool.submit(self._lee, self._done + 1)
        for step in range(self._done + 1, TOTAL + 1):
            marks = ahead.result()
            if step < TOTAL:
                ahead = self._pool.submit(self._lee, step + 1)
            point.at("step", step)
            self._vuelta(step, marks)
            self.client.send_heartbeat()
            if step % EVERY == 0:
                point.at("validation", step)
                tensor = torch.zeros(8)
                self._join(lambda tensor=tensor: dist.all_reduce(tensor), tensor, "validation", step)
                self._saved = self._pool.submit(point.put, step, self.state.tolist())
                point.at("checkpoint", step)
            elif step % EVERY == 2 and self._saved is not None:
                self._saved.result()
                dist.barrier()
                point.commit(step - 2)
        point.at("shutdown", TOTAL)
        self._join(lambda: dist.barrier(), torch.zeros(1), "shutdown", TOTAL)
        point.write_result(self.state.tolist())
        dist.destroy_process_group()

    def _vuelta(self, step: int, marks: list[torch.Tensor]) -> None:
        """One step: forward passes until the pipeline is full, one forward and one backward, then the rest."""
        self.state.grad = None
        warm = min(self.last - self.rank, GOTAS)
        flows: list[tuple[torch.Tensor, torch.Tensor]] = []
        total = torch.zeros(1, dtype=torch.float64)
        for turn in range(GOTAS + warm):
            if turn < GOTAS:
                flows.append(self._ida(step, turn, marks, total))
            if turn >= warm:
                self._vuelve(step, turn - warm, *flows[turn - warm])
        for work, _ in self._flying:
            work.wait()
        self._flying.clear()
        point.at("team", step)
        if self.pair is not None:
            tied = torch.zeros(WIDTH)
            self._join(lambda: dist.all_reduce(tied, group=self.pair), tied, "team", step)
        self._join(lambda: dist.broadcast(total, self.last), total, "collective", step)
        self._paso.step()

    def _ida(
        self, step: int, gota: int, marks: list[torch.Tensor], total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One microbatch forward."""
        source = torch.tensor(numbers(step, 0), dtype=torch.float64)
        if self.rank > 0:
            self._recibe(source, self.rank - 1, step)
        if gota == 1:
            point.at("forward", step)
        source.requires_grad_()
        flow = source + self.state
        if self.rank < self.last:
            self._manda(flow.detach(), self.rank + 1, step)
            return source, flow
        flow = (flow * marks[gota]).sum()
        total += flow.detach()
        return source, flow

    def _vuelve(self, step: int, gota: int, source: torch.Tensor, flow: torch.Tensor) -> None:
        """One microbatch backward."""
        slope = torch.ones_like(flow)
        if self.rank < self.last:
            self._recibe(slope, self.rank + 1, step)
        if gota == 1:
            point.at("backward", step)
            point.hook(flow, "backward", step)
        (flow * slope).sum().backward()
        if self.rank > 0:
            assert source.grad is not None
            self._manda(source.grad, self.rank - 1, step)

    def _manda(self, tensor: torch.Tensor, peer: int, step: int) -> None:
        point.at("exchange", step)
        if (action := point.instead("send", "exchange", step)) is not None:
            action(point, tensor, peer)
        else:
            self._flying.append((dist.isend(tensor, peer), tensor))

    def _recibe(self, tensor: torch.Tensor, peer: int, step: int) -> None:
        if (action := point.instead("recv", "exchange", step)) is not None:
            action(point, tensor, peer)
            return
        work = dist.irecv(tensor, peer)
        assert work is not None
        work.wait()

    def _join(self, call: Callable[[], Any], tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(call, tensor, phase, step, self.pair)

    def _lee(self, step: int) -> list[torch.Tensor]:
        """Thread: the data of a step."""
        offset = point.offset(step)
        rows = (row_of(step, range(gota, SHARDS, GOTAS), offset) for gota in range(GOTAS))
        return [torch.tensor(row, dtype=torch.float64) for row in rows]


if __name__ == "__main__":
    point.ward = Tuberia(connected_client(who))
    point.ward.corre()
    point.finish()
