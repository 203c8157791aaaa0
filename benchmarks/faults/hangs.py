"""Faults by which a rank hangs in its own process: its code, the GIL, its start, its exit."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import re
import signal
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from benchmarks.faults.corpus import (
    COUNTED,
    ELSEWHERE,
    EVERYWHERE,
    FINISHED,
    MANY,
    NO_RANK,
    SHELL,
    STARTED,
    TRAINING,
    also,
    fault,
    held_out,
    second,
)
from benchmarks.faults.injection import InjectionPoint, ask, background

# In the program's own code


@fault(
    "sleep",
    "user_code",
    EVERYWHERE,
    waits=True,
    variants=(("step", COUNTED), ("collective", COUNTED), ("step", SHELL)),
)
def _(point: InjectionPoint) -> None:
    """A rank sleeps forever in the program's own code."""
    time.sleep(3600)


@fault("other_node", "user_code", TRAINING, layouts=ELSEWHERE)
def _(point: InjectionPoint) -> None:
    """A rank of one node sleeps, and the limit of the other node is passed first."""
    time.sleep(3600)


@fault("busy", "user_code", ("init", *TRAINING, "shutdown"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank computes forever in Python."""
    total = 0
    while True:
        total = (total + 1) % 1_000_003


@fault("deaf", "user_code", TRAINING, options=("--ft-rank-termination-signal=SIGTERM",))
def _(point: InjectionPoint) -> None:
    """A rank ignores SIGTERM and sleeps; SIGTERM is what hung ranks get."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


@fault("signal_handler", "user_code", STARTED, waits=True)
def _(point: InjectionPoint) -> None:
    """A signal's handler never returns."""
    signal.signal(signal.SIGALRM, lambda number, frame: time.sleep(3600))
    signal.alarm(1)
    time.sleep(60)


@fault("finaliser", "user_code", TRAINING)
def _(point: InjectionPoint) -> None:
    """The garbage collector runs a finaliser that does not come back."""

    class Handle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            time.sleep(3600)

    Handle()
    gc.collect()


@fault("closed_descriptors", "user_code", ("step", "validation", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A rank has closed all descriptors but its connections, and sleeps."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            mode = os.fstat(int(name)).st_mode
            # gloo's connections, and what waits for them: without these its peers would fail.
            if not stat.S_ISSOCK(mode) and "eventpoll" not in os.readlink(f"/proc/self/fd/{name}"):
                os.close(int(name))
    time.sleep(3600)


@fault("full_output", "user_code", ("step", "validation", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A rank writes into a pipe that is full."""
    _, writer = os.pipe()
    os.dup2(writer, 1)
    while True:
        print("x" * 200, file=sys.stdout)


@second("polls_for_file", "user_code", ("init", "forward"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank polls for a file that is never written."""
    while not (point.folder / "ready").exists():
        time.sleep(0.05)


@second("hook_on_autograd_thread", "user_code", ("backward",), at="hook")
def _(point: InjectionPoint) -> None:
    """A backward hook never returns, on a thread of autograd; the main thread waits for it in native code."""
    import torch

    def deeper(left: int) -> None:
        def on_gradient(gradient: Any) -> None:
            if left:
                deeper(left - 1)
            while not left:
                time.sleep(0.01)

        with torch.enable_grad():
            tensor = torch.ones(1, requires_grad=True) * 2
            tensor.register_hook(on_gradient)
            total = tensor.sum()
        total.backward()  # nested 60 times, autograd continues on a thread of its own

    deeper(70)


@second("heartbeats_from_thread", "user_code", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank sleeps while a thread of it sends heartbeats, so that only its neighbours pass their limits."""

    def beat() -> None:
        while True:
            point.ward.send_heartbeat()
            time.sleep(0.2)

    background(beat)
    time.sleep(3600)


@held_out("polled_collective", "user_code", ("collective", "validation"), at="joint", layouts=MANY)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank sleeps; the others poll, in Python, whether their asynchronous collective is complete."""
    import torch
    import torch.distributed as dist

    if point.mine:
        time.sleep(3600)
    work = dist.all_reduce(torch.zeros(8), async_op=True)
    while work is not None and not work.is_completed():
        time.sleep(0.01)


# By a signal


@fault("stop", "stopped", EVERYWHERE, anywhere=True, variants=(("step", SHELL), ("collective", COUNTED)))
def _(point: InjectionPoint) -> None:
    """A rank is stopped with SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("traced", "stopped", TRAINING, needs=("ptrace",))
def _(point: InjectionPoint) -> None:
    """A debugger holds a rank."""
    attach, set_ptracer = 16, 0x59616D61  # ptrace(2), prctl(2)
    libc = ctypes.CDLL(None)
    if os.fork() == 0:
        traced = os.getppid()
        libc.ptrace(attach, traced, 0, 0)
        while True:  # as debuggers do: the tracer is the first to get the end of what it traces
            os.waitpid(traced, 0)
    libc.prctl(set_ptracer, -1, 0, 0, 0)
    time.sleep(30)


# By Python's interpreter lock


@fault("gil", "gil", STARTED, variants=(("step", COUNTED),))
def _(point: InjectionPoint) -> None:
    """Native code holds Python's interpreter lock and does not come back."""
    from holdfast.testing import inject

    inject("gil@step=0,rank=all").at_step(0)


@fault("regular_expression", "gil", TRAINING)
@also("user_code", "it computes in the program's own code, and holds the interpreter lock meanwhile")
def _(point: InjectionPoint) -> None:
    """A regular expression takes forever."""
    re.match(r"(a|a)*$", "a" * 64 + "b")


@fault("native_lock", "gil", TRAINING)
@also("lock", "no other Python thread runs, because the one that has the GIL waits for a lock")
def _(point: InjectionPoint) -> None:
    """Native code waits for a lock of its own, holding Python's interpreter lock."""
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock  # PyDLL keeps the GIL
    lock(mutex)
    lock(mutex)


# At its start and its exit


@fault("wrong_port", "startup", ("init",))
@also("network", "it has not met the others, as it waits for an answer that never comes")
def _(point: InjectionPoint) -> None:
    """One rank looks for the others at a port on which no process listens."""
    os.environ["MASTER_PORT"] = "9"  # discard


@fault("wrong_world_size", "startup", ("init",))
@also(
    "missing_collective", "it waits for a rank that does not exist, and never comes to the first collective"
)
def _(point: InjectionPoint) -> None:
    """One rank counts one rank more than there is."""
    os.environ["WORLD_SIZE"] = str(point.world + 1)


@fault("thread_at_exit", "shutdown", ("shutdown",), options=FINISHED)
def _(point: InjectionPoint) -> None:
    """A rank is done, and a thread of its own is not."""
    threading.Thread(target=time.sleep, args=(3600,), name="uploader").start()


@fault("exit_handler", "shutdown", ("shutdown",), options=FINISHED)
@also("user_code", "the handler that sleeps is the program's own code")
def _(point: InjectionPoint) -> None:
    """A rank is done, and its exit handler never ends."""
    atexit.register(time.sleep, 3600)


@second("upload_at_exit", "shutdown", ("shutdown",), options=FINISHED, held_out=False)
@also("network", "the thread for which the interpreter waits at its exit waits for a service")
def _(point: InjectionPoint) -> None:
    """A rank is done, and a pool's thread uploads to a service that does not answer."""
    ThreadPoolExecutor(1).submit(ask, point.port)


# Every rank at once


@fault("all_slow", "slow", ("step", "validation", "checkpoint"), blames=NO_RANK)
def _(point: InjectionPoint) -> None:
    """Every rank still moves, but slower than the limit allows."""
    import torch
    import torch.distributed as dist

    for _ in range(400):
        sum(range(20_000))
        time.sleep(0.05)
        dist.all_reduce(torch.zeros(8))
