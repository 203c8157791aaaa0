"""The seventh program of the corpus: a thread of each rank makes its sums, exact to the last bit.

argv as for `program`. Hooks of the parameters hand the gradients of the last of four microbatches to that thread, the
main thread waits for its futures. Neighbours exchange in a ring, a process reads ahead, one rank alone evaluates, and a
second thread saves and meets those of the other ranks in a group of its own. The names are arbitrary, as in `program`.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
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

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

CATCHES, HALF = 4, WIDTH // 2  # microbatches of a step; the width of each of the two parameters


def net(step: int) -> list[list[int]]:
    """Process: this rank's rows of a step, one for each microbatch."""
    offset = point.offset(step)
    own = range(point.rank, SHARDS, point.world)
    return [row_of(step, own[catch::CATCHES], offset) or [0] * WIDTH for catch in range(CATCHES)]


class Ferry:
    """A thread that makes sums over all ranks, in the order in which they are handed to it."""

    def __init__(self) -> None:
        self._pier: queue.SimpleQueue[tuple[torch.Tensor, str, int, Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._cross, name="ferry", daemon=True).start()

    def carry(self, tensor: torch.Tensor, phase: str, step: int) -> Future[None]:
        """Done when the tensor has the sum."""
        landed: Future[None] = Future()
        self._pier.put((tensor, phase, step, landed))
        return landed

    def _cross(self) -> None:
        while True:
            tensor, phase, step, landed = self._pier.get()
            try:
                if (action := point.instead("collective", phase, step)) is not None:
                    action(point, tensor)
                else:
                    dist.all_reduce(tensor)
                landed.set_result(None)
            except BaseException as error:
                landed.set_exception(error)


class Brig:
    """One rank."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # Its process begins before gloo has threads.
        self._nets = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        self._nets.submit(os.getpid).result()
        with section(self._client, "rig"):
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            self._aside = dist.new_group()
            self._done = point.saved_step()
            whole = torch.tensor(point.get(self._done, WIDTH), dtype=torch.float64)
            self.sails: list[Any] = [torch.nn.Parameter(whole[at : at + HALF].clone()) for at in (0, HALF)]
            for sail in self.sails:
                sail.register_post_accumulate_grad_hook(self._full)
            self._optimizer = torch.optim.SGD(self.sails, lr=0.25)
            self._join(torch.zeros(1), "init", 0)
        self._step, self._catch, self._landings = 0, 0, list[Future[None]]()
        self.ferry, self._scribe = Ferry(), ThreadPoolExecutor(1, "scribe")
        self._written: Future[None] | None = None

    def voyage(self) -> None:
        """All steps from the last checkpoint to the end."""
        ahead = self._nets.submit(net, self._done + 1)
        for step in range(self._done + 1, TOTAL + 1):
            self._step = step
            with section(self._client, "leg"):
                rows = ahead.result()
                if step < TOTAL:
                    ahead = self._nets.submit(net, step + 1)
                self._leg(step, torch.tensor(rows, dtype=torch.float64))
            self._client.send_heartbeat()
            if step % EVERY == 0:
                with section(self._client, "lookout"):
                    if point.rank == point.chosen:
                        point.at("validation", step)
                    self._join(torch.zeros(WIDTH), "validation", step)
                point.at("checkpoint", step)
                if step < TOTAL and point.instead("collective", "checkpoint", step) is None:
                    self._written = self._scribe.submit(self._write, step, torch.cat(self.sails).tolist())
            elif step % EVERY == 2 and self._written is not None:
                with section(self._client, "harbour"):
                    self._written.result()
                self._written = None
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), "shutdown", TOTAL)
        point.write_result(torch.cat(self.sails).tolist())
        dist.destroy_process_group()

    def _leg(self, step: int, rows: torch.Tensor) -> None:
        """One step: the microbatches, their sums, the ring."""
        point.at("step", step)
        self._optimizer.zero_grad()
        loss = torch.zeros(())
        for self._catch, row in enumerate(rows):
            if self._catch == 2:
                point.at("forward", step)
            loss = (torch.cat(self.sails) * row).sum()
            if self._catch == 2:
                point.hook(loss, "backward", step)
                point.at("backward", step)
            loss.backward()
        point.at("team", step)
        while self._landings:
            self._landings.pop(0).result()
        self._ring(step)
        self._join(loss.detach().reshape(1), "collective", step)
        self._optimizer.step()

    def _full(self, sail: torch.nn.Parameter) -> None:
        """Hook: the gradient of a microbatch is complete on this rank."""
        if self._catch == CATCHES - 1 and sail.grad is not None:
            self._landings.append(self.ferry.carry(sail.grad, "team", self._step))

    def _ring(self, step: int) -> None:
        """Each rank's mark to the next one."""
        point.at("exchange", step)
        after, before = ((point.rank + by) % point.world for by in (1, -1))
        mark, theirs = torch.ones(4), torch.zeros(4)
        if (action := point.instead("send", "exchange", step)) is not None:
            action(point, mark, after)
        else:
            both = dist.P2POp(dist.isend, mark, after), dist.P2POp(dist.irecv, theirs, before)
            for work in dist.batch_isend_irecv([*both]):
                work.wait()

    def _write(self, step: int, state: list[float]) -> None:
        """Thread: this rank's part; when all are written, rank 0 makes them the checkpoint."""
        point.put(step, state)
        dist.barrier(group=self._aside)
        point.commit(step)

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step, self._aside)


if __name__ == "__main__":
    point.ward = Brig(connected_client(who))
    point.ward.voyage()
    point.finish()
