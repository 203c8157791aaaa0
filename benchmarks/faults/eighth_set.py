"""The eighth held-out set: owners of weights and an evaluation of two ranks (`program_10`), and earlier programs.

Its author had not read the rules, and checked each fault without a verdict in view.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import importlib
import logging
import logging.handlers
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unicodedata
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.corpus import COUNTED, FINISHED, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, background

_own = partial(fault, held_out=True, layouts=("3", "4", "2+2", "4"))
_four, _five, _seven, _eight, _nine, _ten = (partial(_own, program=number) for number in (4, 5, 7, 8, 9, 10))
_well = partial(healthy, held_out=True, program=10)
_FORK = multiprocessing.get_context("fork")
_LOOPS = "the loop is the program's own, and never gives up"


class _Cache:
    """With a thread that fills it, and that ends with it."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    def __del__(self) -> None:
        self.pool.shutdown()


def _spin() -> None:
    while True:
        pass


# Data


@_ten("decoder_stuck", "data_loading", ("step",), at="data")
@also("child", "the worker waits for a program that it has started")
def _(point: InjectionPoint, path: str) -> None:
    """A worker starts a decoder, whose input never comes."""
    os.mkfifo(clip := path + ".clip")
    subprocess.run(["cat", clip], check=True)


@_five("dataset_retries", "data_loading", ("step",), at="data")
@also("user_code", _LOOPS)
def _(point: InjectionPoint, path: str) -> str:
    """A worker tries again and again to find a shard, which no other process unpacks."""
    while True:
        with suppress(OSError):
            return os.fspath(Path(path + ".shard").resolve(strict=True))
        time.sleep(0.2)


# The thread that reads ahead has come to its end, and says it to none.
@_ten("shard_ends_early", "data_loading", ("step",), at="data")
@also("lock", "the main thread waits for a condition that no thread fulfils any more")
def _(point: InjectionPoint, path: str) -> str:
    """One rank has fewer rows: the thread that reads ahead ends in good order, and the main thread waits for it."""
    return path + ".of-day-6"


# Locks


# The rank trains on for two steps, until it needs the average that the thread protects.
@_ten("save_keeps_lock", "checkpoint_io", ("checkpoint",), at="storage")
@also("lock", "the main thread waits for the lock that the thread has meanwhile")
def _(point: InjectionPoint, path: str) -> str:
    """The thread that saves has a lock and is blocked by its storage; the main thread wants the lock."""
    os.mkfifo(path + ".bucket")
    return path + ".bucket"


@_ten("three_locks", "lock", ("forward",))
def _(point: InjectionPoint) -> None:
    """Three threads, each with a lock that another one of them wants."""
    locks, table = [threading.Lock() for _ in range(3)], threading.Barrier(3)

    def sit(place: int) -> None:
        with locks[place]:
            table.wait()
            with locks[place - 1]:
                pass

    background(sit, 1)
    background(sit, 2)
    sit(0)


@_ten("pool_in_destructor", "lock", ("backward",))
def _(point: InjectionPoint) -> None:
    """An object ends under a lock; its destructor joins a thread, which waits for this lock."""
    lock, cache = threading.Lock(), _Cache()
    with lock:
        cache.pool.submit(lock.acquire)
        time.sleep(0.1)
        del cache


@_nine("lost_wakeup", "lock", ("checkpoint",), variants=(("step", COUNTED),))
def _(point: InjectionPoint) -> None:
    """A thread notifies a condition a moment before the main thread begins to wait for it."""
    ready = threading.Condition()

    def tell() -> None:
        with ready:
            ready.notify()

    background(tell).join()
    with ready:
        ready.wait()


@_ten("timer_takes_lock", "lock", ("checkpoint",))
def _(point: InjectionPoint) -> None:
    """The handler of a timer takes the lock that the interrupted code has."""
    signal.signal(signal.SIGALRM, lambda *_: point.ward.lid.acquire())
    with point.ward.lid:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(0.5)


@_eight("failed_task", "lock", ("team",))
@also("user_code", "it waits in an event loop of its own, for an event of its own")
def _(point: InjectionPoint) -> None:
    """A task of an event loop has raised before it set the event for which another one waits."""

    async def play() -> None:
        warm = asyncio.Event()

        async def load() -> None:
            int("0x6")
            warm.set()

        task = asyncio.create_task(load())
        await warm.wait()
        await task

    asyncio.run(play())


# The interpreter lock


@_ten("normalizes_text", "gil", ("step",))
@also("user_code", "it is the program that normalizes such a text")
def _(point: InjectionPoint) -> None:
    """A text has a letter with two million accents, which the C code of Python sorts one by one."""
    unicodedata.normalize("NFC", "a" + "\u0301\u0323" * 1_000_000)


# The main thread is anywhere, and cannot continue.
@_ten("client_keeps_interpreter", "gil", ("exchange",))
@also("network", "what the native code waits for is the answer of a service")
def _(point: InjectionPoint) -> None:
    """A thread calls a native client, which waits for a service and does not give back the interpreter lock."""
    point.ward.link = socket.create_connection(("127.0.0.1", point.port))
    background(ctypes.PyDLL(None).recv, point.ward.link.fileno(), ctypes.create_string_buffer(8), 1, 0)
    time.sleep(0.1)


# The lock goes from thread to thread, and comes to the main thread every few seconds.
@_ten("spinning_threads", "user_code", ("backward",))
@also("gil", "the main thread waits for the interpreter lock nearly all the time")
def _(point: InjectionPoint) -> None:
    """Two hundred threads poll in Python without a pause, and leave the main thread next to nothing."""
    for _ in range(200):
        background(_spin)


# Services


@_ten("backs_off", "network", ("validation",), variants=(("step", COUNTED),))
@also("user_code", _LOOPS)
def _(point: InjectionPoint) -> None:
    """A rank asks a web server that does not answer, again and again, with a timeout and longer and longer pauses."""
    pause = 0.1
    while True:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{point.port}/rubric.json", timeout=0.5)
            return
        time.sleep(pause)
        pause = min(2 * pause, 1)


@_ten("silent_proxy", "network", ("import", "team"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank downloads through a proxy, which accepts the connection and does not answer."""
    proxy = urllib.request.ProxyHandler({"https": f"http://127.0.0.1:{point.port}"})
    urllib.request.build_opener(proxy).open("https://models.example.org/tokenizer.json")


@_seven("log_server_full", "network", ("forward",))
def _(point: InjectionPoint) -> None:
    """A rank logs to a server over TCP, which does not read any more, until no buffer has room."""
    handler = logging.handlers.SysLogHandler(("127.0.0.1", point.port), socktype=socket.SOCK_STREAM)
    log = logging.Logger("tides")
    log.addHandler(handler)
    while True:
        log.warning("low water %s", "~" * 2000)


# The service is no process of this rank, although the code is multiprocessing's.
@_four("no_challenge", "network", ("checkpoint",))
def _(point: InjectionPoint) -> None:
    """A rank connects to a manager on another machine, which does not begin the exchange of keys."""
    multiprocessing.connection.Client(("127.0.0.1", point.port), authkey=b"agua").close()


# Children


@_eight("async_tool", "child", ("forward",), held_out=False)
def _(point: InjectionPoint) -> None:
    """An event loop waits for a tool that does not end."""

    async def render() -> None:
        await (await asyncio.create_subprocess_exec("sleep", "300")).wait()

    asyncio.run(render())


# The child has ended; the rank alone could still write.
@_ten("own_end_open", "child", ("team",))
@also("user_code", "it reads a connection whose other end it has forgotten to close")
def _(point: InjectionPoint) -> None:
    """A helper has ended with code 1; the rank waits for its answer, and has the helper's end open itself."""
    near, far = _FORK.Pipe()
    _FORK.Process(target=os._exit, args=(1,), daemon=True).start()
    near.recv()
    far.close()


@_ten("communicates_again", "child", ("validation",))
def _(point: InjectionPoint) -> None:
    """A shell is killed after a second; the program that it started keeps its output, which the rank reads."""
    tool = subprocess.Popen("sleep 300; true", shell=True, stdout=subprocess.PIPE)
    try:
        tool.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        tool.kill()
        tool.communicate()


@_ten("pool_never_starts", "child", ("forward",))
@also("lock", "the main thread waits for a result, which no process will ever give")
def _(point: InjectionPoint) -> None:
    """The initializer of a pool's process raises, and the pool starts one process after the other."""
    _FORK.Pool(1, int, ("7B",)).map(abs, [6])


@_seven("sibling_keeps_pipe", "child", ("checkpoint",))
def _(point: InjectionPoint) -> None:
    """A tool reads until its input ends, which it never does: another child was forked with the writing end."""
    tool = subprocess.Popen(["sort"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _FORK.Process(target=time.sleep, args=(300,), daemon=True).start()
    tool.communicate(b"b\na\n")


# A rank's own code


@_ten("breakpoint_left", "user_code", ("init", "backward"), waits=True)
def _(point: InjectionPoint) -> None:
    """A breakpoint was left in the code, and the job has a terminal: pdb waits for a command."""
    _, terminal = os.openpty()
    os.dup2(terminal, 0)
    sys.breakpointhook()


# It would come to the end in some minutes.
@_ten("traces_lines", "user_code", ("forward",))
@also("slow", "it moves, a hundred times slower than without")
def _(point: InjectionPoint) -> None:
    """A tool that traces each line of Python was left on, and a rank splits long texts."""

    def follow(frame: Any, event: str, argument: Any) -> Any:
        sum(range(100_000))
        return follow

    def split() -> None:
        for number in range(50_000):
            str(number)

    sys.settrace(follow)
    split()
    sys.settrace(None)


@_ten("rejects_all", "user_code", ("validation",))
def _(point: InjectionPoint) -> None:
    """A sampler rejects every sample: the numbers that it draws are below 1, and it wants a larger one."""
    import torch

    while torch.rand(64).max() < 1:
        pass


# Stops and ends


@_ten("other_recomputation", "exception", ("backward",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A layer computes something else when it is computed again in the backward pass, and torch raises."""
    import torch
    from torch.utils.checkpoint import checkpoint

    turns: list[int] = []

    def layer(row: Any) -> Any:
        turns.append(0)
        return row.sin().exp() if len(turns) == 1 else row.sin()

    flight: Any = checkpoint(layer, torch.ones(4, requires_grad=True), use_reentrant=False)
    flight.sum().backward()


@_ten("queue_at_exit", "shutdown", ("shutdown",), options=FINISHED)
@also("lock", "it joins a thread of its own")
def _(point: InjectionPoint) -> None:
    """A rank is done; the thread of a multiprocessing queue still writes what no process reads, and is joined."""
    point.ward.events = _FORK.Queue()
    point.ward.events.put(bytes(1 << 20))


@_ten("package_mount_hangs", "uninterruptible", ("import",), waits=True, needs=("fuse",))
def _(point: InjectionPoint) -> None:
    """A rank imports a package from a filesystem that does not answer."""
    sys.path.insert(0, str(point.folder / "mounted"))
    importlib.import_module("recipes")


@_ten("rank_twice", "startup", ("init",))
def _(point: InjectionPoint) -> None:
    """A script of one node sets RANK wrongly: a number exists twice, and another one not at all."""
    os.environ["RANK"] = str((point.rank + 1) % point.world)


# Collectives


@_ten("order_of_set", "mismatched_collective", ("team",), at="collective", layouts=THREE, hangs=None)
@also("missing_collective", "each of its sums has another root than that of the others, and waits for it")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces its gradients in another order, as its set of names has another one."""
    point.ward.carry([2, 0, 3, 1])


@_ten(
    "not_finite_here",
    "missing_collective",
    ("team",),
    at="collective",
    layouts=THREE,
    hangs=None,
    held_out=False,
)
@also(
    "mismatched_collective", "it comes to the sum of the loss, and the others are in those of the gradients"
)
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank has a loss that is not finite, and leaves out the sums of the gradients of this step."""


@_ten("meets_in_thread", "mismatched_collective", ("checkpoint",), at="storage", layouts=THREE, hangs=None)
@also("missing_collective", "its thread is in a barrier to which no other rank comes")
def _(point: InjectionPoint, path: str) -> None:
    """The thread that saves enters a barrier of all ranks, in one rank only, while its main thread trains."""
    import torch.distributed as dist

    dist.barrier()


@_ten("no_judge", "missing_collective", ("validation",), at="collective", layouts=THREE, hangs=None)
@also("mismatched_collective", "it is in the broadcast after the evaluation, or beyond it")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One of the two ranks that evaluate has no examples, and does not gather with the other one."""


@_nine("metrics_twice", "mismatched_collective", ("backward",), at="collective", layouts=THREE, hangs=None)
@also("missing_collective", "it is one sum ahead of the others in the group of the metrics")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank sums its metrics twice, asynchronously, in a group that is used for other calls as well."""
    import torch.distributed as dist

    for _ in range(2):
        point.ward._dust = dist.all_reduce(tensor, group=point.ward.aside, async_op=True)


# Healthy jobs


@_well("late_judge", "validation", "4")
def _(point: InjectionPoint) -> None:
    """One of the two ranks that evaluate needs 2.5 s."""
    time.sleep(2.5)


@_well("odd_guests", "exchange", "2+2")
def _(point: InjectionPoint) -> None:
    """Threads wait for a lock and a service forever, a child is stopped, native code keeps the interpreter for 1 s."""
    point.ward.guest = subprocess.Popen(["sleep", "60"])
    atexit.register(point.ward.guest.kill)
    point.ward.guest.send_signal(signal.SIGSTOP)
    lock = threading.Lock()
    lock.acquire()
    background(lock.acquire)
    background(ask, point.port)
    ctypes.PyDLL(None).usleep(1_000_000)


@_well("traces_graphs", "step", "3", COUNTED)
def _(point: InjectionPoint) -> None:
    """Without a client, one rank traces graphs for 3 s of a limit of 6 s."""
    import torch

    end = time.monotonic() + 3
    while time.monotonic() < end:
        torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
