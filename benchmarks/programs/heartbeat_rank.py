"""A rank that measures what its own supervision calls cost, and prints that as one JSON line.

argv: "holdfast" or "nvrx", then the situation: "idle", "stopped" (its monitor is stopped meanwhile; holdfast only),
"busy" (every core has a process that computes). Starts under the launcher of the same name.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from time import perf_counter_ns, sleep

import psutil
from rank_client import connected_client

CALLS = {"holdfast": 20_000, "nvrx": 2_000}
SPACED = 1000  # calls with busy cores, one every millisecond: back to back, one would measure the scheduler
BUSY = "while True: sum(range(1000))"


def times(calls: int, pause: float, *functions: Callable[[], object]) -> list[int]:
    """What each call took in nanoseconds, the clock's own cost taken off. The functions are called in turn,
    `pause` seconds apart."""
    rounds = range(calls // len(functions))
    empty = statistics.median(-perf_counter_ns() + perf_counter_ns() for _ in range(10_000))
    taken = []
    for _ in rounds:
        for function in functions:
            if pause:
                sleep(pause)
            before = perf_counter_ns()
            function()
            taken.append(perf_counter_ns() - before - int(empty))
    return taken


def summary(taken: list[int]) -> dict[str, float]:
    """Microseconds."""
    return {
        "median": statistics.median(taken) / 1e3,
        "p99": statistics.quantiles(taken, n=100)[98] / 1e3,
        "mean": statistics.fmean(taken) / 1e3,
    }


@contextmanager
def stopped_monitor() -> Iterator[None]:
    """Stop the monitor of this rank's launcher for as long as the block runs."""
    while not (found := _monitors()):  # it starts beside the ranks
        sleep(0.01)
    (monitor,) = found
    monitor.suspend()
    try:
        yield
    finally:
        monitor.resume()


def _monitors() -> list[psutil.Process]:
    """The monitor of this rank's launcher."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(os.getppid()).children()
        return [child for child in children if "monitor.main" in " ".join(child.cmdline())]
    return []


@contextmanager
def busy_cores() -> Iterator[None]:
    """A computing process for each core."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Measure a heartbeat, and the edges of a section."""
    who, situation = sys.argv[1:]
    made, calls = connected_client(who), SPACED if situation == "busy" else CALLS[who]
    pause = 0.001 if situation == "busy" else 0.0

    start, end = partial(made.start_section, "step"), partial(made.end_section, "step")
    with ExitStack() as stack:
        if situation != "idle":
            stack.enter_context({"stopped": stopped_monitor, "busy": busy_cores}[situation]())
        times(
            calls // 10, pause, made.send_heartbeat
        )  # the interpreter specialises what it has seen a few times
        times(calls // 10, pause, start, end)
        heartbeat = summary(times(calls, pause, made.send_heartbeat))
        edge = summary(times(calls, pause, start, end))
    made.shutdown_workload_monitoring()
    print(json.dumps({"heartbeat": heartbeat, "edge": edge}), flush=True)


if __name__ == "__main__":
    main()
