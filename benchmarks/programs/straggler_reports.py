"""One rank that makes straggler reports of 5 sections and 500 kernels: its time, memory and traffic, as a line of JSON.

    python straggler_reports.py holdfast|nvrx [RANKS]

With RANKS it is rank 0 of a simulated job, whose other ranks answer with its own row, each number a few percent off.
Their time is taken off; the memory of what they deliver is not: a real gather needs it as well. Without RANKS it is a
gloo rank whose place is in the environment. Both contenders are handed the same summaries.
"""

from __future__ import annotations

import json
import pickle
import random
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np
import torch.distributed as dist

SECTIONS, KERNELS, BLOCK = 5, 500, 256
WHO, SIMULATED = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
REPORTS, WARM = (8, 2) if SIMULATED else (200, 10)
spent, received_0, received_others = 0.0, 0, 0
"""What the other ranks took, in seconds, and what rank 0 and each of the others received, in bytes."""


def windows(statistic: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Summaries of sections in milliseconds, of kernels in microseconds: a few, over and over."""
    noise = random.Random(0 if SIMULATED else dist.get_rank())

    def summary(median: float) -> dict[Any, float]:
        named = {
            "MIN": median * 0.9,
            "MAX": median * 1.2,
            "MED": median,
            "AVG": median,
            "STD": 0.1,
            "NUM": 20,
        }
        return {getattr(statistic, name): value for name, value in named.items()}

    sections = [f"section_{one}" for one in range(SECTIONS)]
    kernels = [f"kernel_{one}_" + "x" * 180 for one in range(KERNELS)]
    return cycle(
        [
            (
                {one: summary(10 + noise.random()) for one in sections},
                {one: summary(100 + noise.random()) for one in kernels},
            )
            for _ in range(5)
        ]
    )


class Others:
    """All other ranks of a simulated job, as Holdfast's channel."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size, self.ranks = size, range(size)
        self._noise = np.random.default_rng(0)

    def least(self, values: list[float]) -> list[float]:
        count(8 * len(values), 8 * len(values))
        return values

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        count(0, length)
        return payload

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytearray:
        global spent
        started = perf_counter()
        count(length * (self.size - 1), 0)
        rows = bytearray(length * self.size)
        table = np.frombuffer(rows, np.uint8).reshape(self.size, length)
        row = np.frombuffer(payload.ljust(length, b"\0"), np.uint8)
        for start in range(0, self.size, BLOCK):
            block = table[start : start + BLOCK]
            block[:] = row
            if length > 1000:  # figures, not names: the medians, which follow the scores
                first = 8 * 2 * (1 + SECTIONS)
                last = first + 4 * (SECTIONS + min(KERNELS, 128))
                medians = np.ascontiguousarray(block[:, first:last]).view("<f4")
                medians *= self._noise.normal(1, 0.02, medians.shape).astype("f4")
                block[:, first:last] = medians.view(np.uint8)
        spent += perf_counter() - started
        return rows


def count(by_0: int, by_others: int) -> None:
    global received_0, received_others
    received_0, received_others = received_0 + by_0, received_others + by_others


def holdfast() -> Callable[[], Any]:
    import holdfast.straggler.judge  # noqa: F401  its import is not what is measured
    from holdfast.straggler import Statistic
    from holdfast.straggler.kernels.source import KernelSource, KernelWindow
    from holdfast.straggler.session import Session
    from holdfast.straggler.settings import Settings

    told = windows(Statistic)

    class Told(KernelSource):
        name = "told"

        def take(self) -> KernelWindow:
            return KernelWindow(window[1])

    def report() -> Any:
        nonlocal window
        window = next(told)
        return session.report()

    window: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    settings = Settings(node_name="gpu-0001" if SIMULATED else f"node-{dist.get_rank()}")
    session = Session(settings, Told(), *([Others(SIMULATED)] if SIMULATED else []))
    session.sections.take = lambda: window[0]  # type: ignore[method-assign]
    return report


def nvrx() -> Callable[[], Any]:
    from nvidia_resiliency_ext.straggler.reporting import ReportGenerator
    from nvidia_resiliency_ext.straggler.statistics import Statistic

    if SIMULATED:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.get_world_size = lambda group=None: SIMULATED
        dist.all_gather_object, dist.all_reduce, dist.gather = all_gather_object, all_reduce, gather
    told = windows(Statistic)
    scores = ["relative_perf_scores", "individual_perf_scores"]
    name = "gpu-0001" if SIMULATED else f"node-{dist.get_rank()}"
    generator = ReportGenerator(scores, gather_on_rank0=True, node_name=name)
    return lambda: generator.generate_report(*next(told))


def timed(collective: Any) -> Any:
    """A collective of a simulated job, in place of torch's. NVRx sends names to every rank."""

    def call(*args: Any, **options: Any) -> None:
        global spent
        started = perf_counter()
        collective(*args, **options)
        spent += perf_counter() - started

    return call


@timed
def all_gather_object(objects: list[Any], own: Any, group: Any = None) -> None:
    message = pickle.dumps(own)
    count(len(message) * (SIMULATED - 1), len(message) * (SIMULATED - 1))
    for rank in range(SIMULATED):
        one = pickle.loads(message)
        objects[rank] = (rank, *one[1:]) if isinstance(one, tuple) and one[:1] == (0,) else one


@timed
def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    size = tensor.numel() * tensor.element_size()
    count(size, size)


@timed
def gather(tensor: Any, gather_list: Any = None, dst: int = 0, group: Any = None) -> None:
    for one in gather_list:
        one.copy_(tensor)
    count(tensor.numel() * tensor.element_size() * (SIMULATED - 1), 0)


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    global spent
    if not SIMULATED:
        dist.init_process_group("gloo")
    report = {"holdfast": holdfast, "nvrx": nvrx}[WHO]()
    before, times, first_received = peak(), [], (0, 0)
    for number in range(REPORTS):
        if not SIMULATED:
            dist.barrier()
        spent, started = 0.0, perf_counter()
        made = report()
        times.append((perf_counter() - started - spent) * 1e3)
        assert not SIMULATED or len(made.gpu_relative_perf_scores) == SIMULATED
        if not number:
            first_received = received_0, received_others
    figures = {
        "first_ms": times[0],
        "steady_ms": statistics.median(times[WARM:]),
        "first_received_rank_0": first_received[0],
        "first_received_others": first_received[1],
        "extra_mb": peak() - before,
    }
    if SIMULATED or dist.get_rank() == 0:
        print(json.dumps(figures))
    if dist.is_initialized():
        dist.destroy_process_group()


main()
