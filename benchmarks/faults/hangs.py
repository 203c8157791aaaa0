"""Faults by which a rank hangs in its own process: its code, a lock, a thread, the GIL, its start, its exit.

Healthy jobs, which must be left alone, are at the end.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import multiprocessing
import os
import queue
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

from benchmarks.faults.corpus import (
    COUNTED,
    ELSEWHERE,
    EVERYWHERE,
    FINISHED,
    NOBODY,
    OWN_CODE,
    SHELL,
    STARTED,
    TRAINING,
    also,
    fault,
    healthy,
)
from benchmarks.faults.injection import InjectionPoint

# In the program's own code


@fault(
    "sleep",
    "user_code",
    EVERYWHERE,
    waits=True,
    variants=(("step", COUNTED), ("collective", COUNTED), ("step", SHELL)),
)
def _(point: InjectionPoint) -> None:
    """A rank sleeps for ever in the program's own code."""
    time.sleep(3600)


@fault("other_node", "user_code", TRAINING, layouts=ELSEWHERE)
def _(point: InjectionPoint) -> None:
    """A rank of one node sleeps, and the limit of the other node is passed first."""
    time.sleep(3600)


@fault("busy", "user_code", ("init", *TRAINING, "shutdown"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank computes for ever in Python."""
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
    """A regular expression takes for ever."""
    re.match(r"(a|a)*$", "a" * 64 + "b")


@fault("native_lock", "gil", TRAINING)
@also("lock", "no other Python thread runs, because the one that has the GIL waits for a lock")
def _(point: InjectionPoint) -> None:
    """Native code waits for a lock of its own, holding Python's interpreter lock."""
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock  # PyDLL keeps the GIL
    lock(mutex)
    lock(mutex)


# By a lock, a queue or a thread


@fault("lock", "lock", ("init", *TRAINING, "shutdown"), waits=True)
def _(point: InjectionPoint) -> None:
    """A thread takes a lock that it has already."""
    guard = threading.Lock()
    with guard, guard:
        pass


@fault("two_locks", "lock", TRAINING)
def _(point: InjectionPoint) -> None:
    """Two threads each wait for the lock that the other has."""
    first, second = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def other() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        with second:
            pass


@fault("queue", "lock", STARTED, waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for a queue that stays empty."""
    queue.Queue[int]().get()


@fault("file_lock", "lock", OWN_CODE, waits=True)
def _(point: InjectionPoint) -> None:
    """A file is locked by another process of the machine."""
    with open(point.folder / "locked") as file:  # locked by `fixtures`
        fcntl.flock(file, fcntl.LOCK_EX)


@fault("process_lock", "lock", STARTED, waits=True)
def _(point: InjectionPoint) -> None:
    """A lock between processes is held by one that is gone."""
    guard = multiprocessing.get_context("fork").Lock()
    if (pid := os.fork()) == 0:
        guard.acquire()
        os._exit(0)
    os.waitpid(pid, 0)
    guard.acquire()


@fault("thread_barrier", "lock", TRAINING)
def _(point: InjectionPoint) -> None:
    """A thread waits at a barrier to which no other comes."""
    threading.Barrier(2).wait()


@fault("event", "lock", STARTED, waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for an event that is never set."""
    threading.Event().wait()


@fault("thread", "lock", ("step", "validation", "checkpoint", "shutdown"))
@also("user_code", "the main thread waits for another one, which sleeps in the program's own code")
def _(point: InjectionPoint) -> None:
    """A rank joins a thread that sleeps."""
    other = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    other.start()
    other.join()


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


# Every rank at once


@fault("all_slow", "slow", ("step", "validation", "checkpoint"), blames=NOBODY)
def _(point: InjectionPoint) -> None:
    """Every rank still moves, but slower than the limit allows."""
    import torch
    import torch.distributed as dist

    for _ in range(400):
        sum(range(20_000))
        time.sleep(0.05)
        dist.all_reduce(torch.zeros(8))


# Healthy jobs


@healthy("quiet", "step", "4", workers=2)
def _(point: InjectionPoint) -> None:
    """Nothing happens, with two workers for the data."""


@healthy("slow_once", "step", "3")
def _(point: InjectionPoint) -> None:
    """A step takes 1.5 s of a limit of 3 s."""
    time.sleep(1.5)


@healthy("stopped_for_a_second", "collective", anywhere=True)
def _(point: InjectionPoint) -> None:
    """A rank is stopped for 1 s."""
    with subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


@healthy("long_checkpoint", "checkpoint", "2+2")
def _(point: InjectionPoint) -> None:
    """A checkpoint takes 1.8 s."""
    time.sleep(1.8)


@healthy("collections", "step", blames=NOBODY)
def _(point: InjectionPoint) -> None:
    """The garbage collector runs over 400,000 objects."""
    kept = [[number] for number in range(400_000)]
    for _ in range(3):
        gc.collect()
    del kept


@healthy("slow_data", "step", workers=1, at="data")
def _(point: InjectionPoint, path: str) -> None:
    """The data's worker takes 1.2 s."""
    time.sleep(1.2)


@healthy("slow_start", "init", "3")
def _(point: InjectionPoint) -> None:
    """A rank comes 2 s late to the others."""
    time.sleep(2)


@healthy("two_nodes", "validation", "2+2")
def _(point: InjectionPoint) -> None:
    """Two nodes, one of them 1 s late in validation."""
    time.sleep(1)


@healthy("nothing_said", "validation", "2", COUNTED, blames=NOBODY)
def _(point: InjectionPoint) -> None:
    """No client, and a validation of 1.5 s."""
    time.sleep(1.5)


@healthy("shell", "step", "2", SHELL)
def _(point: InjectionPoint) -> None:
    """Below a shell, with a step of 1 s."""
    time.sleep(1)


@healthy("own_failure", "step")
def _(point: InjectionPoint) -> None:
    """An exception that the program handles itself."""
    with suppress(ValueError):
        raise ValueError("a sample cannot be read")


@healthy("long_end", "shutdown", "3")
def _(point: InjectionPoint) -> None:
    """A rank exports its model for 1.5 s at the end."""
    time.sleep(1.5)
