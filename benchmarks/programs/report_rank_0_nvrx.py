"""The peer of `report_rank_0.py`: NVRx's report on rank 0 of a simulated job, as a line of JSON.

    python report_rank_0_nvrx.py RANKS [SECTIONS KERNELS REPORTS]

torch.distributed's collectives are replaced in this process: every other rank answers with rank 0's own tensors, and
with objects of its own that are equal. Their time is taken off; the memory of what they deliver is not. Names of all
ranks come to every rank, so what rank 0 receives is what others receive.
"""

from __future__ import annotations

import json
import pickle
import random
import resource
import statistics
import sys
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

RANKS = int(sys.argv[1])
SECTIONS, KERNELS, REPORTS = (int(one) for one in (*sys.argv[2:], *("5", "500", "5")[len(sys.argv) - 2 :]))
spent, received = 0.0, 0


def timed(collective: Any) -> Any:
    def call(*args: Any, **options: Any) -> None:
        global spent
        started = perf_counter()
        collective(*args, **options)
        spent += perf_counter() - started

    return call


@timed
def all_gather_object(objects: list[Any], own: Any, group: Any = None) -> None:
    global received
    message = pickle.dumps(own)
    received += len(message) * (RANKS - 1)
    for rank in range(RANKS):
        one = pickle.loads(message)
        objects[rank] = (rank, *one[1:]) if isinstance(one, tuple) and one[:1] == (0,) else one


@timed
def all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    global received
    received += tensor.numel() * tensor.element_size()


@timed
def gather(tensor: torch.Tensor, gather_list: Any = None, dst: int = 0, group: Any = None) -> None:
    global received
    for one in gather_list:
        one.copy_(tensor)
    received += tensor.numel() * tensor.element_size() * (RANKS - 1)


def summary(statistic: Any, median: float) -> dict[Any, float]:
    values = {"MIN": median * 0.9, "MAX": median * 1.2, "MED": median, "AVG": median, "STD": 0.1, "NUM": 20}
    return {getattr(statistic, name): value for name, value in values.items()}


def main() -> None:
    global spent
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
    from nvidia_resiliency_ext.straggler.statistics import Statistic

    dist.get_world_size = lambda group=None: RANKS
    dist.all_gather_object, dist.all_reduce, dist.gather = all_gather_object, all_reduce, gather
    scores = ["relative_perf_scores", "individual_perf_scores"]
    generator = ReportGenerator(scores, gather_on_rank0=True, node_name="gpu-0001")
    noise = random.Random(0)
    sections = {f"section_{one}": summary(Statistic, 10 + noise.random()) for one in range(SECTIONS)}
    kernels = {
        f"kernel_{one}_" + "x" * 180: summary(Statistic, 100 + noise.random()) for one in range(KERNELS)
    }
    before, times, first_received = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, [], 0
    for _ in range(REPORTS):
        spent, started = 0.0, perf_counter()
        report = generator.generate_report(sections, kernels)
        times.append((perf_counter() - started - spent) * 1e3)
        first_received = first_received or received
        assert len(report.gpu_relative_perf_scores) == RANKS
    print(
        json.dumps(
            {
                "first_ms": times[0],
                "steady_ms": statistics.median(times[1:]),
                "first_received_rank_0": first_received,
                "first_received_others": first_received,
                "extra_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before,
            }
        )
    )


main()
