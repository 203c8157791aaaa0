"""Faults that end a process: by a signal, an exit code, an exception, a lack of memory, or with its whole node."""

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
from functools import partial
from typing import Any, NoReturn

from benchmarks.faults.corpus import (
    COUNTED,
    ELSEWHERE,
    EVERYWHERE,
    NODE,
    OWN_CODE,
    READS,
    SHELL,
    STARTED,
    TRAINING,
    also,
    fault,
)
from benchmarks.faults.injection import InjectionPoint, no_core

_ends = partial(fault, hangs=False)

_BOTH = "both the exception and the lack of memory ended it"


# By a signal


@_ends("kill_9", "signal", EVERYWHERE, anywhere=True, variants=(("step", COUNTED), ("collective", SHELL)))
def _(point: InjectionPoint) -> None:
    """A rank is killed with -9."""
    os.kill(os.getpid(), signal.SIGKILL)


@_ends("segfault", "signal", TRAINING, anywhere=True)
def _(point: InjectionPoint) -> None:
    """A rank reads from address 0."""
    no_core()
    ctypes.string_at(0)


@_ends("abort", "signal", ("init", "step", "collective", "checkpoint"), anywhere=True)
def _(point: InjectionPoint) -> None:
    """A rank aborts, as C++ does at a failed assertion."""
    no_core()
    os.abort()


@_ends("cpp_exception", "signal", STARTED, anywhere=True)
def _(point: InjectionPoint) -> None:
    """A C++ library throws an exception that is not caught."""
    no_core()
    ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]()


@_ends("bus_error", "signal", TRAINING, anywhere=True)
def _(point: InjectionPoint) -> None:
    """A mapped file is shorter than it was."""
    no_core()
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        file.truncate(0)
        view[mmap.PAGESIZE]


@_ends("told_to_end", "signal", ("init", "step", "collective", "checkpoint"), anywhere=True)
def _(point: InjectionPoint) -> None:
    """SIGTERM is sent to one rank."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@_ends("interrupted", "exception", TRAINING)
@also("signal", "Python raises KeyboardInterrupt and then ends itself by the signal")
def _(point: InjectionPoint) -> None:
    """SIGINT is sent to one rank, and Python turns it into KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


@_ends("half_saved", "signal", ("checkpoint",), at="storage")
def _(point: InjectionPoint, path: str) -> str:
    """The kernel ends a rank in the middle of a file that it writes."""
    no_core()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as a library gets it
    return path + ".large"


# By an exit code


@_ends("exit_3", "exit", ("import", "init", *TRAINING))
def _(point: InjectionPoint) -> NoReturn:
    """A rank leaves with exit code 3, without output."""
    sys.exit(3)


@_ends("os_exit_0", "early_exit", ("init", *TRAINING, "shutdown"), turns_in=("init",), anywhere=True)
def _(point: InjectionPoint) -> NoReturn:
    """A library ends the rank with exit code 0 at once."""
    os._exit(0)


@_ends("sys_exit_0", "early_exit", ("import", "step", "validation", "checkpoint"), turns_in=("import",))
def _(point: InjectionPoint) -> NoReturn:
    """A rank leaves early, in good order, with exit code 0."""
    sys.exit(0)


# By an exception


@_ends("exception", "exception", EVERYWHERE, variants=(("step", COUNTED), ("collective", SHELL)))
def _(point: InjectionPoint) -> NoReturn:
    """One rank raises a ValueError; the others wait for it."""
    raise ValueError("the labels of batch 17 have shape (8, 3), not (8, 4)")


@_ends("exception_in_hook", "exception", ("step",), at="hook")
def _(point: InjectionPoint) -> NoReturn:
    """A hook of the backward pass raises."""
    raise RuntimeError("a gradient is not finite")


@_ends("exception_in_worker", "exception", READS, at="data", workers=1)
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The dataset raises in a worker of the data loader."""
    raise KeyError("sample 1742 has no label")


@_ends("worker_killed", "exception", READS, at="data", workers=1)
@also("data_loading", "the loader's exception ended the rank, and says itself that its worker was killed")
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader is killed with -9."""
    os.kill(os.getpid(), signal.SIGKILL)


@_ends("recursion", "exception", OWN_CODE)
def _(point: InjectionPoint) -> None:
    """A function calls itself without an end."""

    def deeper(tree: list[Any]) -> int:
        return 1 + deeper([tree])

    deeper([])


@_ends("no_space", "exception", ("checkpoint",), at="storage")
def _(point: InjectionPoint, path: str) -> str:
    """The checkpoint's filesystem is full."""
    return "/dev/full"


@_ends("no_descriptors", "exception", ("step", "validation", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A rank has no file descriptor left."""
    most = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    while True:
        kept.append(point.folder.joinpath("data").open())


# By a lack of memory


@_ends("gpu_out_of_memory", "exception", ("init", "step", "collective", "validation"))
@also("out_of_memory", _BOTH)
def _(point: InjectionPoint) -> NoReturn:
    """A GPU has no room for a tensor."""
    import torch

    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 79.11 GiB of which 1.05 GiB is free."
    )


@_ends("memory_error", "out_of_memory", OWN_CODE)
@also("exception", _BOTH)
def _(point: InjectionPoint) -> None:
    """A rank reaches its limit of address space."""
    from holdfast.testing import inject

    inject("memory@step=0,limit=64MiB,rank=all").at_step(0)


@_ends(
    "out_of_memory_kill",
    "out_of_memory",
    ("step", "collective", "validation", "checkpoint"),
    needs=("cgroup",),
)
def _(point: InjectionPoint) -> None:
    """The kernel kills a rank for its memory."""
    group = point.folder.joinpath("cgroup").read_text()
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    hoard = []
    for _ in range(512):
        hoard.append(b"\xff" * (8 << 20))


# With its node, or because of a peer


@_ends("node_lost", "node_lost", TRAINING, blames=NODE, layouts=ELSEWHERE)
def _(point: InjectionPoint) -> None:
    """A node stops for good, as one without power; no connection is closed."""
    threading.Event().wait(60)  # `run.Job` stops it


@_ends("launcher_lost", "node_lost", TRAINING, blames=NODE, layouts=ELSEWHERE)
@also(
    "elsewhere", "its ranks end with it and break the connections at once; the node's loss shows only later"
)
def _(point: InjectionPoint) -> None:
    """The launcher of one node is killed with -9."""
    threading.Event().wait(60)  # `run.Job` kills it


@fault("peers_time_out", "user_code", ("collective", "validation", "checkpoint"), layouts=("2", "3", "2+2"))
def _(point: InjectionPoint) -> None:
    """A rank sleeps, and torch's own limit of the collective ends its peers first."""
    time.sleep(3600)
