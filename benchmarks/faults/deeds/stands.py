"""Ranks that stand still, or run for ever, by themselves."""

from __future__ import annotations

import gc
import os
import re
import signal
import stat
import sys
import time
from contextlib import suppress

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


@deed("sleep", "other_node")
def _(point: Point) -> None:
    time.sleep(3600)


@deed("busy")
def _(point: Point) -> None:
    total = 0
    while True:
        total = (total + 1) % 1_000_003


@deed("gil")
def _(point: Point) -> None:
    from holdfast.testing.deeds import perform
    from holdfast.testing.fault import Fault

    perform(Fault("gil", step=0))


@deed("stop", anywhere=True)
def _(point: Point) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@deed("deaf")
def _(point: Point) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


@deed("all_slow")
def _(point: Point) -> None:
    import torch
    import torch.distributed as dist

    for _ in range(400):
        sum(range(20_000))
        time.sleep(0.05)
        dist.all_reduce(torch.zeros(8))


@deed("regular_expression")
def _(point: Point) -> None:
    re.match(r"(a|a)*$", "a" * 64 + "b")


@deed("signal_handler")
def _(point: Point) -> None:
    signal.signal(signal.SIGALRM, lambda number, frame: time.sleep(3600))
    signal.alarm(1)
    time.sleep(60)


@deed("finaliser")
def _(point: Point) -> None:
    class Handle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            time.sleep(3600)

    Handle()
    gc.collect()


@deed("closed_descriptors")
def _(point: Point) -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            mode = os.fstat(int(name)).st_mode
            # gloo's connections, and what waits for them: without these its peers would fail.
            if not stat.S_ISSOCK(mode) and "eventpoll" not in os.readlink(f"/proc/self/fd/{name}"):
                os.close(int(name))
    time.sleep(3600)


@deed("full_output")
def _(point: Point) -> None:
    _, writer = os.pipe()
    os.dup2(writer, 1)
    while True:
        print("x" * 200, file=sys.stdout)
