"""The eighth program of the corpus: all ranks play, and one of them learns, exact to the last bit.

argv as for `program`. An event loop plays a step's episodes, whose gradients are accumulated. Every rank sends the sum
to rank 0, which steps and sends the weights back. Rank 0 alone reads the marks of all, a process of each rank writes
its checkpoints, and threads serve metrics. The names are arbitrary, as in `program`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.faults.injection import SHARDS, WIDTH, InjectionPoint, formatted, numbers
from benchmarks.programs.rank_client import connected_client

who, folder = sys.argv[1], Path(sys.argv[2])
point = InjectionPoint(folder)
point.at("import")

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # seconds, and optimizers import it at their first use
import torch.distributed as dist  # noqa: E402

from benchmarks.faults.corpus import EVERY, TOTAL  # noqa: E402

ROLES = 3  # episodes of a rank in each step


def rehearse(step: int, role: int) -> list[int]:
    """Thread of the event loop: the row of one episode."""
    place = str(folder / "data")
    offset = int(Path(place if role else point.path("data", "step", step, place)).read_text())
    own = range(point.rank, SHARDS, point.world)[role::ROLES]
    columns = zip(*(numbers(step, shard + offset) for shard in own), strict=True)
    return [sum(column) for column in columns] or [0] * WIDTH


async def curtain(step: int) -> list[list[int]]:
    return await asyncio.gather(*(asyncio.to_thread(rehearse, step, role) for role in range(ROLES)))


def prompter(pipe: Any, parent: int) -> None:
    """Process: writes this rank's parts of checkpoints, as long as the rank is alive."""
    while os.getppid() == parent:
        if pipe.poll(1):
            step, state = pipe.recv()
            path = point.path("storage", "checkpoint", step, str(folder / f"part-{point.rank}.{step}"))
            Path(path).write_text(json.dumps(state))
            pipe.send(step)


class Foyer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with point.ward.rope:
            self.wfile.write(point.ward.page)


class Troupe:
    def __init__(self, client: Any) -> None:
        self._client = client
        fork = multiprocessing.get_context("fork")
        self._pipe, self._theirs = fork.Pipe()
        fork.Process(target=prompter, args=(self._theirs, os.getpid()), daemon=True).start()
        self.rope, self.page = threading.Lock(), b""
        foyer = ThreadingHTTPServer(("127.0.0.1", 0), Foyer)
        self.place = foyer.server_address
        threading.Thread(target=foyer.serve_forever, daemon=True).start()
        self._loop = asyncio.new_event_loop()
        with self._act("dress"):
            point.at("init")
            dist.init_process_group("gloo", timeout=point.group_timeout)
            self._aside = dist.new_group()
            self._done = json.loads((folder / "checkpoint").read_text())["step"]
            part = folder / f"part-{point.rank}.{self._done}"
            found = json.loads(part.read_text()) if self._done else [0.0] * WIDTH
            self.mask: Any = torch.nn.Parameter(torch.tensor(found, dtype=torch.float64))
            self._optimizer = torch.optim.SGD([self.mask], lr=0.25)
            self._join(torch.zeros(1), "init", 0)

    def season(self) -> None:
        for step in range(self._done + 1, TOTAL + 1):
            with self._act("scene"):
                self._scene(step)
            if step % EVERY == 0:
                with self._act("review"):
                    self._review(step)
                point.at("checkpoint", step)
                self._pipe.send((step, self.mask.tolist()))
            elif step % EVERY == 2 and step > self._done + 2:
                with self._act("cellar"):
                    self._close(self._pipe.recv())
        point.at("shutdown", TOTAL)
        self._join(torch.zeros(1), "shutdown", TOTAL)
        if point.rank == 0:
            (folder / "result").write_text(formatted(self.mask.tolist()))
        dist.destroy_process_group()

    @contextmanager
    def _act(self, name: str) -> Iterator[None]:
        self._client.start_section(name)
        yield
        self._client.end_section(name)
        self._client.send_heartbeat()

    def _scene(self, step: int) -> None:
        point.at("step", step)
        self._optimizer.zero_grad()
        loss = torch.zeros(())
        for role, row in enumerate(self._loop.run_until_complete(curtain(step))):
            if role == 1:
                point.at("forward", step)
            loss = (self.mask * torch.tensor(row, dtype=torch.float64)).sum()
            if role == 1:
                point.at("backward", step)
            loss.backward()
        with self.rope:
            self.page = f"step {step}\n".encode()
        point.at("team", step)
        self._lesson(step)
        self._join(loss.detach().reshape(1), "collective", step)

    def _lesson(self, step: int) -> None:
        point.at("exchange", step)
        weights, others = self.mask.data, range(1, point.world)
        if point.rank:
            dist.send(self.mask.grad, 0)
            dist.recv(weights, 0)
            return
        for other in others:
            dist.recv(theirs := torch.zeros_like(weights), other)
            self.mask.grad += theirs
        self._optimizer.step()
        for other in others:
            dist.send(weights, other)

    def _review(self, step: int) -> None:
        point.at("validation", step)
        self._join(torch.zeros(WIDTH), "validation", step)
        marks: Any = [None] * point.world if point.rank == 0 else None
        dist.gather_object({"rank": point.rank, "step": step}, marks, group=self._aside)
        opinion = [all(mark["step"] == step for mark in marks) if marks else None]
        dist.broadcast_object_list(opinion, group=self._aside)

    def _close(self, step: int) -> None:
        dist.barrier(group=self._aside)
        if point.rank == 0:
            (folder / "checkpoint.new").write_text(json.dumps({"step": step}))
            (folder / "checkpoint.new").replace(folder / "checkpoint")

    def _join(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        point.enters(phase, step)
        if (joint := point.joint(phase, step)) is not None:
            joint(point, tensor, self._aside)
        dist.all_reduce(tensor)


if __name__ == "__main__":
    point.ward = Troupe(connected_client(who))
    point.ward.season()
    point.finish()
