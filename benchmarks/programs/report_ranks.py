"""One of several gloo ranks that make straggler reports of 5 sections and 500 kernels: rank 0 prints a line of JSON.

    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python report_ranks.py holdfast|nvrx

Both contenders are handed the same summaries; what is timed is the exchange between the ranks and the report.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import torch.distributed as dist

SECTIONS, KERNELS, REPORTS = 5, 500, 200


def names() -> tuple[list[str], list[str]]:
    return [f"section_{one}" for one in range(SECTIONS)], [
        f"kernel_{one}_" + "x" * 180 for one in range(KERNELS)
    ]


Window = tuple[dict[str, Any], dict[str, Any]]
"""Summaries of sections in milliseconds, of kernels in microseconds."""


def windows(statistic: Any) -> Iterator[Window]:
    """A few, over and over: making them is not what is timed."""
    noise = random.Random(dist.get_rank())

    def summary(median: float) -> dict[Any, float]:
        values = {
            "MIN": median * 0.9,
            "MAX": median * 1.2,
            "MED": median,
            "AVG": median,
            "STD": 0.1,
            "NUM": 20,
        }
        return {getattr(statistic, name): value for name, value in values.items()}

    sections, kernels = names()
    return cycle(
        [
            (
                {one: summary(10 + noise.random()) for one in sections},
                {one: summary(100 + noise.random()) for one in kernels},
            )
            for _ in range(5)
        ]
    )


def holdfast() -> Callable[[], object]:
    from holdfast.straggler import Statistic
    from holdfast.straggler.kernels.source import KernelWindow, NoKernels
    from holdfast.straggler.session import Session
    from holdfast.straggler.settings import Settings

    told = windows(Statistic)

    class Told(NoKernels):
        name = "told"

        def take(self) -> KernelWindow:
            return KernelWindow(window[1])

    def report() -> object:
        nonlocal window
        window = next(told)
        return session.report()

    window: Window = {}, {}
    session = Session(Settings(node_name=f"node-{dist.get_rank()}"), Told())
    session.sections.take = lambda: window[0]  # type: ignore[method-assign]
    return report


def nvrx() -> Callable[[], object]:
    from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
    from nvidia_resiliency_ext.straggler.statistics import Statistic

    told = windows(Statistic)
    scores = ["relative_perf_scores", "individual_perf_scores"]
    generator = ReportGenerator(scores, gather_on_rank0=True, node_name=f"node-{dist.get_rank()}")
    return lambda: generator.generate_report(*next(told))


def main() -> None:
    dist.init_process_group("gloo")
    report = {"holdfast": holdfast, "nvrx": nvrx}[sys.argv[1]]()
    times = []
    for _ in range(REPORTS):
        dist.barrier()
        started = perf_counter()
        report()
        times.append((perf_counter() - started) * 1e3)
    if os.environ["RANK"] == "0":
        print(json.dumps({"first": times[0], "median": statistics.median(times[10:])}))
    dist.destroy_process_group()


main()
