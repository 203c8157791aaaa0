"""What a healthy job does."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


@deed("quiet")
def _(point: Point) -> None:
    pass


@deed("slow_once", "long_end", "nothing_said")
def _(point: Point) -> None:
    time.sleep(1.5)


@deed("shell", "two_nodes")
def _(point: Point) -> None:
    time.sleep(1)


@deed("long_checkpoint")
def _(point: Point) -> None:
    time.sleep(1.8)


@deed("slow_start")
def _(point: Point) -> None:
    time.sleep(2)


@deed("slow_data", place="data")
def _(point: Point, path: str) -> None:
    time.sleep(1.2)


@deed("stopped_for_a_second", anywhere=True)
def _(point: Point) -> None:
    waker = f"sleep 1; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", waker]):
        os.kill(os.getpid(), signal.SIGSTOP)


@deed("collections")
def _(point: Point) -> None:
    kept = [[number] for number in range(400_000)]
    for _ in range(3):
        gc.collect()
    del kept


@deed("own_failure")
def _(point: Point) -> None:
    try:
        raise ValueError("a sample cannot be read")
    except ValueError:
        pass
