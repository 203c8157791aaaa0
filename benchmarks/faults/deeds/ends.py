"""Ends of a process."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@deed("kill_9", anywhere=True)
def _(point: Point) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@deed("segfault", anywhere=True)
def _(point: Point) -> None:
    _no_core()
    ctypes.string_at(0)


@deed("abort", anywhere=True)
def _(point: Point) -> None:
    _no_core()
    os.abort()


@deed("cpp_exception", anywhere=True)
def _(point: Point) -> None:
    _no_core()
    ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]()


@deed("bus_error", anywhere=True)
def _(point: Point) -> None:
    _no_core()
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        file.truncate(0)
        view[mmap.PAGESIZE]


@deed("told_to_end", anywhere=True)
def _(point: Point) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@deed("interrupted")
def _(point: Point) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


@deed("exit_3")
def _(point: Point) -> NoReturn:
    sys.exit(3)


@deed("os_exit_0", anywhere=True)
def _(point: Point) -> NoReturn:
    os._exit(0)


@deed("sys_exit_0")
def _(point: Point) -> NoReturn:
    sys.exit(0)


@deed("exception")
def _(point: Point) -> NoReturn:
    raise ValueError("the labels of batch 17 have shape (8, 3), not (8, 4)")


@deed("exception_in_hook", place="hook")
def _(point: Point) -> NoReturn:
    raise RuntimeError("a gradient is not finite")


@deed("exception_in_worker", place="data")
def _(point: Point, path: str) -> NoReturn:
    raise KeyError("sample 1742 has no label")


@deed("gpu_out_of_memory")
def _(point: Point) -> NoReturn:
    import torch

    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 79.11 GiB of which 1.05 GiB is free."
    )


@deed("memory_error")
def _(point: Point) -> None:
    from holdfast.testing.deeds import perform
    from holdfast.testing.fault import MIB, Fault

    perform(Fault("memory", step=0, limit=64 * MIB))


@deed("out_of_memory_kill")
def _(point: Point) -> None:
    group = point.folder.joinpath("cgroup").read_text()
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    hoard = []
    for _ in range(512):
        hoard.append(b"\xff" * (8 << 20))


@deed("half_saved", place="storage")
def _(point: Point, path: str) -> str:
    _no_core()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return path + ".large"


@deed("recursion")
def _(point: Point) -> None:
    def deeper(tree: list[Any]) -> int:
        return 1 + deeper([tree])

    deeper([])


@deed("no_space", place="storage")
def _(point: Point, path: str) -> str:
    return "/dev/full"


@deed("no_descriptors")
def _(point: Point) -> None:
    most = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    while True:
        kept.append(point.folder.joinpath("data").open())


@deed("peers_time_out")
def _(point: Point) -> None:
    time.sleep(3600)


@deed("node_lost", "launcher_lost")
def _(point: Point) -> None:
    threading.Event().wait(60)
