"""Faults that end a process: by a signal, an exit code, an exception, a lack of memory, with its node or by a peer."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from benchmarks.faults.corpus import (
    COUNTED,
    ELSEWHERE,
    EVERYWHERE,
    MANY,
    NODE,
    OWN_CODE,
    SHELL,
    TEAMS,
    TRAINING,
    also,
    fault,
    held_out,
    second,
)
from benchmarks.faults.injection import InjectionPoint, background, no_core

_ends, _second_ends = partial(fault, hangs=False), partial(second, hangs=False)

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


@_second_ends("segfault_after_refusal", "signal", ("forward", "exchange"))
def _(point: InjectionPoint) -> None:
    """A rank crashes in native code; its stderr has an old "Connection refused" of a metrics service."""
    print(
        "metrics: ConnectionRefusedError: [Errno 111] Connection refused; offline",
        file=sys.stderr,
        flush=True,
    )
    no_core()
    ctypes.string_at(0)


@_second_ends("cpu_limit", "signal", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank reaches its limit of CPU time."""
    no_core()
    soft = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    while True:
        pass


@second("killed_by_pipe", "signal", ("exchange",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A library has set SIGPIPE to its default, and the rank writes into a pipe without a reader."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"loss 1.0\n")


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


@held_out("forked_away", "early_exit", ("step", "collective"))
def _(point: InjectionPoint) -> None:
    """A library forks and ends the parent with code 0, as daemons do; the child has lost gloo's threads."""
    if os.fork():
        os._exit(0)


# By an exception


@_ends("exception", "exception", EVERYWHERE, variants=(("step", COUNTED), ("collective", SHELL)))
def _(point: InjectionPoint) -> NoReturn:
    """One rank raises a ValueError; the others wait for it."""
    raise ValueError("the labels of batch 17 have shape (8, 3), not (8, 4)")


@_ends("exception_in_hook", "exception", ("step",), at="hook")
def _(point: InjectionPoint) -> NoReturn:
    """A hook of the backward pass raises."""
    raise RuntimeError("a gradient is not finite")


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


@_second_ends("service_resets", "exception", ("forward", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A service, which is no rank, resets its connection, and the rank raises."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        connection.recv(1)


@_second_ends("service_times_out", "exception", ("init", "step"))
def _(point: InjectionPoint) -> None:
    """A service does not answer within the rank's own timeout, and the rank raises."""
    with socket.create_connection(("127.0.0.1", point.port), timeout=0.5) as connection:
        connection.recv(1)


@_second_ends("broken_pipe", "exception", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank writes to a child that has ended, and raises."""
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    child.wait()
    assert child.stdin is not None
    child.stdin.write(b"loss 1.0\n")
    child.stdin.flush()


@second("own_hook", "exception", ("forward", "team"), hangs=False)
@also("exit", "the program's own hook ends the process, with an exit code of its choice")
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises; the program's own sys.excepthook logs one line of JSON and leaves with code 70."""

    def on_exception(kind: Any, error: BaseException, traceback: Any) -> None:
        print(f'{{"level": "fatal", "error": "{kind.__name__}: {error}"}}', file=sys.stderr, flush=True)
        os._exit(70)

    sys.excepthook = on_exception
    raise LookupError("no schedule for this step")


@held_out("cleans_up_first", "exception", ("collective", "validation"), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises, leaves its process group, and takes 1.5 s to clean up; meanwhile its peers fail."""
    import torch.distributed as dist

    try:
        raise FloatingPointError("the loss is not finite")
    finally:
        dist.destroy_process_group()
        time.sleep(1.5)


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


@second("abort_by_watchdog", "user_code", ("team", "collective"), hangs=None, at="joint", layouts=TEAMS)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank sleeps; watchdogs abort its peers, which wait in a collective, after 1.5 s."""
    if point.mine:
        time.sleep(3600)

    def watch() -> None:
        time.sleep(1.5)
        text = f"[Rank {point.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
        print(
            f"{text}OpType=ALLREDUCE) ran for 1500 milliseconds before timing out.",
            file=sys.stderr,
            flush=True,
        )
        os.abort()

    no_core()
    background(watch)


@held_out(
    "monitored_barrier", "user_code", ("collective", "checkpoint"), hangs=None, at="joint", layouts=MANY
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank sleeps; a monitored barrier of the others passes its limit of 1.5 s and raises."""
    import torch.distributed as dist

    if point.mine:
        time.sleep(3600)
    dist.monitored_barrier(timeout=timedelta(seconds=1.5), wait_all_ranks=True)
