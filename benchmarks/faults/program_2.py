"""The second program of the corpus: pipeline stages of teams on gloo, exact to the last bit. Held-out faults use it.

argv as for `program`. Stages exchange activations and gradients with send and receive; the ranks of one stage are a
team that sums its gradients in a group of its own; all ranks sum the loss. A thread reads ahead, another one writes
checkpoints, and heartbeats are sent by hand. The names are arbitrary on purpose, as in `program`.
"""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, numbers, row_of
from benchmarks.programs.rank_client import connected_client, section

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

PIECES = 2
"""Microbatches of a step."""


class Mill:
    """One rank: its place in the grid, its weights, its threads."""

    def __init__(self, client: Any) -> None:
        self._client = client
        client.start_section("zeta")
        point.at("init")
        dist.init_process_group("gloo", timeout=point.group_timeout)
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._width = 2 if self._world > 2 and self._world % 2 == 0 else 1
        teams = [dist.new_group([*range(k, k + self._width)]) for k in range(0, self._world, self._width)]
        self._team = teams[self._rank // self._width]
        self._before = self._rank - self._width if self._rank >= self._width else None
        self._after = self._rank + self._width if self._rank + self._width < self._world else None
        self._done = point.saved_step()
        first = point.get(self._done, WIDTH)
        self._state = torch.nn.Parameter(torch.tensor(first, dtype=torch.float64))
        self._join(torch.zeros(1), None, "init", 0)
        self._inbox: queue.Queue[tuple[torch.Tensor, list[torch.Tensor]]] = queue.Queue(2)
        self._outbox: queue.Queue[tuple[int, list[float], threading.Event]] = queue.Queue()
        self._written = threading.Event()
        threading.Thread(target=self._fill, name="t1", daemon=True).start()
        threading.Thread(target=self._drain, name="t2", daemon=True).start()
        client.end_section("zeta")

    def turn(self) -> None:
        """All steps from the last checkpoint to the end."""
        for step in range(self._done + 1, TOTAL + 1):
            point.at("step", step)
            self._one(step, *self._inbox.get())
            self._client.send_heartbeat()
            if step % EVERY == 0 and step < TOTAL:
                point.at("checkpoint", step)
                self._written = threading.Event()
                self._outbox.put((step, self._state.tolist(), self._written))
            elif step % EVERY == 2 and step - 2 > self._done:
                self._settle(step - 2)
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), None, "shutdown", TOTAL)
        point.write_result(self._state.tolist())
        dist.destroy_process_group()

    def _one(self, step: int, start: torch.Tensor, marks: list[torch.Tensor]) -> None:
        """Forward for all pieces, backward for all pieces, then the sums."""
        self._state.grad = None
        flows = []
        total = torch.zeros(1, dtype=torch.float64)
        for piece in range(PIECES):
            source = start.clone()
            if self._before is not None:
                self._get(source, self._before, step)
            source.requires_grad_()
            if piece == 0:
                point.at("forward", step)
            flow = source + self._state
            if self._after is not None:
                self._put(flow.detach(), self._after, step)
            else:
                flow = (flow * marks[piece]).sum()
                total += flow.detach()
            flows.append((source, flow))
            self._client.send_heartbeat()
        for piece, (source, flow) in enumerate(flows):
            slope = torch.ones_like(flow)
            if self._after is not None:
                self._get(slope, self._after, step)
            if piece == 0:
                point.at("backward", step)
                point.hook(flow, "backward", step)
            (flow * slope).sum().backward()  # with a gradient as argument, torch imports for seconds
            if self._before is not None:
                assert source.grad is not None
                self._put(source.grad, self._before, step)
        assert self._state.grad is not None
        point.at("team", step)
        self._join(self._state.grad, self._team, "team", step)
        self._join(total, None, "collective", step)
        with torch.no_grad():
            self._state.sub_(0.25 * self._state.grad)

    def _put(self, tensor: torch.Tensor, peer: int, step: int) -> None:
        point.at("exchange", step)
        if (action := point.instead("send", "exchange", step)) is not None:
            action(point, tensor, peer)
        else:
            dist.send(tensor, peer)

    def _get(self, tensor: torch.Tensor, peer: int, step: int) -> None:
        if (action := point.instead("recv", "exchange", step)) is not None:
            action(point, tensor, peer)
        else:
            dist.recv(tensor, peer)

    def _join(self, tensor: torch.Tensor, group: Any, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor, group=group), tensor, phase, step, self._team)

    def _settle(self, step: int) -> None:
        """Wait for the parts of all ranks, which are a checkpoint then."""
        with section(self._client, "kappa"):
            self._written.wait()
            dist.barrier()
            point.commit(step)

    def _fill(self) -> None:
        """Thread: the data of each step, ahead of it."""
        own = [shard for shard in range(SHARDS) if shard % self._width == self._rank % self._width]
        for step in range(self._done + 1, TOTAL + 1):
            offset = point.offset(step)
            marks = []
            for piece in range(PIECES):
                shards = [shard for shard in own if shard * PIECES // SHARDS == piece]
                marks.append(torch.tensor(row_of(step, shards, offset), dtype=torch.float64))
            self._inbox.put((torch.tensor(numbers(step, 0), dtype=torch.float64), marks))

    def _drain(self) -> None:
        """Thread: writes this rank's parts."""
        while True:
            step, state, written = self._outbox.get()
            point.put(step, state)
            written.set()


if __name__ == "__main__":
    point.ward = connected_client(who)
    Mill(point.ward).turn()
    point.finish()
