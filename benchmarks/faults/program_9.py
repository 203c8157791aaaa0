"""The ninth program of the corpus: an expert on each rank, exact to the last bit.

argv as for `program`. Tokens are sent to the experts and back with all-to-all, in the forward and the backward pass.
Metrics are summed while the next step computes, a thread reads ahead, and the next rank rates a moving average of the
weights, in a thread that serves its neighbour. The names are arbitrary, as in `program`.
"""

from __future__ import annotations

import json
import queue
import socket
import socketserver
import sys
import threading
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

# The columns of each expert.
TRACKS = [list(range(track, WIDTH, point.world)) for track in range(point.world)]
MINE = TRACKS[point.rank]


def swap(wagons: torch.Tensor, leave: list[int], arrive: list[int]) -> torch.Tensor:
    """What the others have sent to this rank."""
    found = wagons.new_empty(sum(arrive))
    dist.all_to_all_single(found, wagons.contiguous(), arrive, leave)
    return found


class Turnout(torch.autograd.Function):
    """`swap`, and for the gradients the way back."""

    @staticmethod
    def forward(ctx: Any, wagons: torch.Tensor, leave: list[int], arrive: list[int]) -> torch.Tensor:
        ctx.way = arrive, leave
        return swap(wagons, leave, arrive)

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> Any:
        return swap(slopes, *ctx.way), None, None


class Booth(socketserver.StreamRequestHandler):
    """Thread: weighs what the rank before this one sends."""

    def handle(self) -> None:
        for line in self.rfile:
            step, load = json.loads(line)
            point.at("team", step)
            with point.ward.gate:
                point.ward.weighed[step] = sum(load)
            self.wfile.write(b"%d\n" % step)


class Yard:
    def __init__(self, client: Any) -> None:
        self._client = client
        self.gate, self.weighed = threading.Lock(), dict[int, float]()
        with section(client, "coupling"):
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            self.aside = dist.new_group()
            self._done = point.saved_step()
            first = point.get(self._done, len(MINE))
            self.freight: Any = torch.nn.Parameter(torch.tensor(first, dtype=torch.float64))
            self._calm = self.freight.detach().clone()
            self._optimizer = torch.optim.SGD([self.freight], lr=0.25)
            self.next = self._connected()
            self._join(torch.zeros(1), "init", 0)
        self._dust: Any = None
        self.belt = queue.Queue[list[int]](1)
        threading.Thread(target=self._shovel, daemon=True).start()

    def _connected(self) -> Any:
        booth = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Booth)
        booth.daemon_threads = True
        threading.Thread(target=booth.serve_forever, daemon=True).start()
        places: list[Any] = [None] * point.world
        dist.all_gather_object(places, booth.server_address)
        return socket.create_connection(places[(point.rank + 1) % point.world]).makefile("rw")

    def _shovel(self) -> None:
        """Thread: the tokens of this rank, one step ahead."""
        for step in range(self._done + 1, TOTAL + 1):
            self.belt.put(row_of(step, range(point.rank, SHARDS, point.world), point.offset(step)))

    def run(self) -> None:
        for step in range(self._done + 1, TOTAL + 1):
            with section(self._client, "haul"):
                point.at("step", step)
                self._haul(step, torch.tensor(self.belt.get(), dtype=torch.float64))
            self._client.send_heartbeat()
            if step % 2 == 0:
                with section(self._client, "toll"):
                    self._toll(step)
            if step % EVERY == 0:
                with section(self._client, "siding"):
                    self._park(step)
        point.at("shutdown", TOTAL)
        whole = torch.zeros(WIDTH, dtype=torch.float64)
        whole[MINE] = self.freight.detach()
        self._join(whole, "shutdown", TOTAL)
        point.write_result(whole.tolist())
        dist.destroy_process_group()

    def _haul(self, step: int, row: torch.Tensor) -> None:
        """One step: to the experts, back, the gradients, the metrics."""
        self._optimizer.zero_grad()
        leave, arrive = [len(track) for track in TRACKS], [len(MINE)] * point.world
        tokens = row[[column for track in TRACKS for column in track]].requires_grad_()
        point.at("exchange", step)
        there = Turnout.apply(tokens, leave, arrive).view(point.world, -1)  # type: ignore[no-untyped-call]
        point.at("forward", step)
        back = Turnout.apply((there * self.freight).flatten(), arrive, leave)  # type: ignore[no-untyped-call]
        loss = back.sum()
        point.hook(back, "backward", step)
        point.at("backward", step)
        loss.backward()
        if self._dust is not None:
            self._dust.wait()
        metrics = loss.detach().reshape(1)
        if (action := point.instead("collective", "backward", step)) is not None:
            action(point, metrics)
        else:
            self._dust = dist.all_reduce(metrics, group=self.aside, async_op=True)
        self._join(torch.zeros(1), "collective", step)
        self._optimizer.step()
        self._calm.lerp_(self.freight.detach(), 0.5)

    def _toll(self, step: int) -> None:
        """The next rank weighs the average; every fourth step, all ranks meet first."""
        if step % EVERY == 0:
            point.at("validation", step)
            self._join(torch.zeros(WIDTH), "validation", step)
        self.ask(step)

    def ask(self, step: int) -> None:
        self.next.write(json.dumps([step, self._calm.tolist()]) + "\n")
        self.next.flush()
        assert int(self.next.readline()) == step

    def _park(self, step: int) -> None:
        point.at("checkpoint", step)
        point.put(step, self.freight.tolist())
        dist.barrier(group=self.aside)
        point.commit(step)

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.combine(lambda: dist.all_reduce(tensor), tensor, phase, step, self.aside)


if __name__ == "__main__":
    point.ward = Yard(connected_client(who))
    point.ward.run()
    point.finish()
