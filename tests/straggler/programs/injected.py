"""A small job with DistributedDataParallel on the CPU, in which one rank is slowed down on purpose.

Arguments: store, ranks, seed, kinds of slowness, one after the other. The ranks are forked from here, so that torch is
imported once. Rank 0 prints, for each report, a line of JSON: the kind, the verdicts, and what was withheld. Each kind
has `REPORTS` reports, a healthy job `HEALTHY`; a slow rank that is not named by then, for noise of the machine, has
until report `MOST`.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from holdfast.straggler import Detector

KINDS = ("healthy", "busy", "data", "gc", "late")
REPORTS, HEALTHY, MOST, STEPS = 7, 9, 36, 15
WIDTH, BATCH = 128, 32
LOADING, SLOW_LOADING, BUSY, LATE = 0.002, 0.012, 0.010, 0.020
HEAP = 200_000
"""Objects of every rank that a collection looks at."""


def culprit(seed: int, ranks: int) -> int:
    """The rank that is slowed down."""
    return random.Random(seed).randrange(ranks)


def busy(seconds: float) -> None:
    """Work that the other ranks do not have. CPU time: on a busy machine the rank then still does this work, and does
    not only wait for a core, which would be the host's fault."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def network(seed: int) -> DistributedDataParallel:
    """The same on all ranks."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)), bucket_cap_mb=0.5)


def train(rank: int, slow_rank: int | None, kind: str, seed: int) -> None:
    """All steps and reports of one rank."""
    slow = kind if rank == slow_rank else "healthy"
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    gc.freeze()  # of what torch has made, nothing is looked at
    heap = [[number] for number in range(HEAP)]
    named = torch.tensor(int(slow_rank is None))
    Detector.initialize()
    for step in range(1, MOST * STEPS + 1):
        with Detector.detection_section("data_loading", profile_cuda=False):
            time.sleep(SLOW_LOADING if slow == "data" else LOADING)
            inputs = torch.randn(BATCH, WIDTH, generator=generator)
        with Detector.detection_section("forward"):
            loss = model(inputs).square().mean()
            if slow == "busy":
                busy(BUSY)
            if slow == "gc":
                gc.collect()
        if slow == "late":
            time.sleep(LATE)
        with Detector.collective_section("backward"):
            loss.backward()
        with Detector.detection_section("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if step % STEPS == 0:
            report = Detector.generate_report()
            if report is not None:
                print(json.dumps([kind, report.to_dict()["verdicts"], list(report.withheld)]), flush=True)
                named |= any(verdict.rank == slow_rank for verdict in report.verdicts())
            dist.broadcast(named, src=0)
            if named and step >= (REPORTS if slow_rank is not None else HEALTHY) * STEPS:
                break
    assert len(heap) == HEAP
    Detector.shutdown()


def run(rank: int, store: str, ranks: int, seed: int, kinds: list[str]) -> None:
    """One rank: join the job, train, leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    for kind in kinds:
        train(rank, culprit(seed, ranks) if kind != "healthy" else None, kind, seed)
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks and wait for them."""
    store, ranks, seed, kinds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    start_processes(run, (store, ranks, seed, kinds), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
