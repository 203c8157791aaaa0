"""Held-out faults: real jobs have them, and no rule was written or changed with their results in view.

They run in `program_2`. Their labels were written before anything was run, by an author without the rules at hand.
Once a rule has been changed for one of these faults, it is not held out any more: it has `held_out=False`.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import hashlib
import logging
import multiprocessing
import os
import resource
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from benchmarks.faults import corpus
from benchmarks.faults.corpus import FINISHED, NOBODY, also
from benchmarks.faults.injection import WIDTH, InjectionPoint, no_core

_TEAMS = ("4", "2+2", "4")
_ODD = ("3", "4", "2+2", "3")
_fault = partial(corpus.fault, held_out=True, program=2, layouts=("4", "3", "2+2", "2", "3", "1+1"))
_ends = partial(_fault, hangs=False)
_healthy = partial(corpus.healthy, held_out=True, program=2)
_ABSENT = "it is in another call, and never came to the one in which its neighbour waits"


def _ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)


def _background(target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


# A stage is busy or blocked in its own process, and its neighbours wait in send and receive


@_fault("polls_for_file", "user_code", ("init", "forward"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank polls for a file that is never written."""
    while not (point.folder / "ready").exists():
        time.sleep(0.05)


@_fault("native_spin", "user_code", ("forward", "exchange"))
def _(point: InjectionPoint) -> None:
    """Native code computes for hours without the GIL."""
    hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 2**31 - 1)


@_fault("hook_on_autograd_thread", "user_code", ("backward",), at="hook")
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


@_fault("heartbeats_from_thread", "user_code", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank sleeps while a thread of it sends heartbeats, so that only its neighbours pass their limits."""

    def beat() -> None:
        while True:
            point.ward.beat()
            time.sleep(0.2)

    _background(beat)
    time.sleep(3600)


@_fault("import_lock", "lock", ("forward", "backward"))
@also("user_code", "the thread that has the import lock sleeps in a module of the program")
def _(point: InjectionPoint) -> None:
    """A thread never finishes an import, and the main thread imports the same module."""
    name = f"lazy_part_{point.rank}"
    (point.folder / f"{name}.py").write_text("import time\ntime.sleep(3600)\n")
    sys.path.insert(0, str(point.folder))
    _background(__import__, name)
    time.sleep(0.3)
    __import__(name)


@_fault("log_lock", "lock", ("step", "exchange"))
@also("user_code", "the thread that has the handler's lock writes into a full pipe")
def _(point: InjectionPoint) -> None:
    """A thread logs into a pipe that is full, and the main thread waits for the handler."""
    _, writer = os.pipe()
    logger = logging.getLogger("metrics")
    logger.addHandler(logging.StreamHandler(os.fdopen(writer, "w")))
    logger.propagate = False

    def flood() -> None:
        while True:
            logger.warning("x" * 1000)

    _background(flood)
    time.sleep(0.5)
    logger.warning("loss")


@_fault("lock_of_reader", "lock", ("step", "backward"))
@also("network", "the thread that has the lock waits for an answer of a service")
def _(point: InjectionPoint) -> None:
    """A data thread keeps a shared lock while a service does not answer it."""
    guard = threading.Lock()

    def refresh() -> None:
        with guard:
            _ask(point.port)

    _background(refresh)
    time.sleep(0.3)
    with guard:
        pass


@_fault("future_never_done", "lock", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank waits in native code for a future that is never completed."""
    import torch

    torch.futures.Future[int]().wait()


@_fault("stale_lock_file", "lock", ("init",), waits=True, held_out=False)
def _(point: InjectionPoint) -> None:
    """A lock file of a process that is gone keeps a rank from building an extension."""
    from torch.utils.file_baton import FileBaton

    path = point.folder / "lock"
    path.touch()
    FileBaton(str(path)).wait()


@_fault("database_lock", "lock", ("step", "checkpoint"))
@also("user_code", "SQLite sleeps between its attempts, in the rank itself")
def _(point: InjectionPoint) -> None:
    """Another process has locked the database into which a rank writes its metrics."""
    sqlite3.connect(point.folder / "metrics.db", timeout=3600).execute("insert into loss values (1)")


# Its data, its checkpoint, its children, its services


@_fault("reader_thread_died", "data_loading", ("step",), at="data")
@also("lock", "it waits for its data, and the means is a queue of its own process")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The thread that reads the data raises, and the main thread waits for its queue."""
    raise KeyError("shard 17 has no index")


@_fault("dataset_mount_hangs", "data_loading", ("step",), at="data", needs=("fuse",))
@also("lock", "the main thread waits for a queue of its own process, and its thread for the file")
def _(point: InjectionPoint, path: str) -> str:
    """The thread that reads the data is blocked in a filesystem that does not answer."""
    return str(point.folder / "mounted" / "shard")


@_fault("saver_blocked", "checkpoint_io", ("checkpoint",), at="storage", needs=("fuse",))
@also("lock", "the main thread waits for another thread, and that one for the storage")
def _(point: InjectionPoint, path: str) -> str:
    """The thread that saves is blocked in storage; the main thread trains for two steps and then waits for it."""
    return str(point.folder / "mounted" / "part")


@_fault("saver_thread_died", "lock", ("checkpoint",), at="storage")
@also("checkpoint_io", "it waits for its checkpoint, and the means is an event of its own process")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The thread that saves raises, and the main thread waits for it two steps later."""
    raise OSError(5, "Input/output error", path)


@_fault("pool_of_processes", "child", ("init", "forward"), in_phase={"init": ("child", "startup")})
@also("lock", "the means by which it waits for its child is a lock of its own process")
def _(point: InjectionPoint) -> None:
    """A rank waits for the result of a process pool whose process sleeps."""
    multiprocessing.get_context("fork").Pool(1).map(time.sleep, [3600])


@_fault("pool_process_killed", "child", ("forward", "checkpoint"))
@also("lock", "the pool has a new process, and a result that is never given")
def _(point: InjectionPoint) -> None:
    """A process of a pool is killed, and the pool waits for its result for ever."""
    multiprocessing.get_context("fork").Pool(1).map(os._exit, [137])


@_fault("pipe_to_tracker", "child", ("step", "exchange"))
@also("user_code", "the program's own write does not return")
def _(point: InjectionPoint) -> None:
    """A rank writes metrics to a child that does not read them."""
    child = subprocess.Popen(["sleep", "3600"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    while True:
        child.stdin.write(b"loss 1.0\n" * 1000)


@_fault("asyncio_service", "network", ("init", "forward"), waits=True, held_out=False)
def _(point: InjectionPoint) -> None:
    """An event loop waits for a service that does not answer."""

    async def fetch() -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", point.port)
        await reader.read(1)

    asyncio.run(fetch())


@_fault("dripping_service", "network", ("step", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A service sends its answer byte by byte."""
    port = int((point.folder / "dripping").read_text())
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answer:
        answer.read(1 << 20)


@_fault(
    "download_under_lock",
    "network",
    ("init",),
    waits=True,
    at="joint",
    layouts=("4", "3", "2"),
    held_out=False,
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank downloads under a file lock and gets no answer; the others wait for the lock."""
    if not point.mine:
        time.sleep(0.5)
    with open(point.folder / "download.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if point.mine:
            _ask(point.port)


@_fault("upload_at_exit", "shutdown", ("shutdown",), options=FINISHED, held_out=False)
@also("network", "the thread for which the interpreter waits at its exit waits for a service")
def _(point: InjectionPoint) -> None:
    """A rank is done, and a pool's thread uploads to a service that does not answer."""
    ThreadPoolExecutor(1).submit(_ask, point.port)


# Ends


@_ends("segfault_after_refusal", "signal", ("forward", "exchange"))
def _(point: InjectionPoint) -> None:
    """A rank crashes in native code; its stderr has an old "Connection refused" of a metrics service."""
    print(
        "metrics: ConnectionRefusedError: [Errno 111] Connection refused; offline",
        file=sys.stderr,
        flush=True,
    )
    no_core()
    ctypes.string_at(0)


@_ends("stack_overflow", "signal", ("forward", "backward"))
def _(point: InjectionPoint) -> None:
    """A callback of native code calls itself until the stack is full."""
    no_core()
    sys.setrecursionlimit(10**9)
    callback = ctypes.CFUNCTYPE(None)(lambda: callback())
    callback()


@_ends("cpu_limit", "signal", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank reaches its limit of CPU time."""
    no_core()
    soft = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    while True:
        pass


@_ends("thread_exits", "exit", ("backward", "exchange"))
def _(point: InjectionPoint) -> None:
    """A watchdog thread ends the process with exit code 17."""
    _background(os._exit, 17)
    time.sleep(60)


@_ends("address_in_use", "exception", ("init",))
def _(point: InjectionPoint) -> None:
    """A rank opens a port that is in use."""
    socket.create_server(("127.0.0.1", point.port))


@_ends("service_resets", "exception", ("forward", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A service, which is no rank, resets its connection, and the rank raises."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        connection.recv(1)


@_ends("service_times_out", "exception", ("init", "step"))
def _(point: InjectionPoint) -> None:
    """A service does not answer within the rank's own timeout, and the rank raises."""
    with socket.create_connection(("127.0.0.1", point.port), timeout=0.5) as connection:
        connection.recv(1)


@_ends("broken_pipe", "exception", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank writes to a child that has ended, and raises."""
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    child.wait()
    assert child.stdin is not None
    child.stdin.write(b"loss 1.0\n")
    child.stdin.flush()


@_fault("abort_by_watchdog", "user_code", ("team", "collective"), hangs=None, at="joint", layouts=_TEAMS)
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
    _background(watch)


# Ranks that disagree about what they communicate


@_fault("skipped_send", "mismatched_collective", ("exchange",), at="send", layouts=_ODD)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage leaves out one send, and continues."""


@_fault("skipped_receive", "mismatched_collective", ("exchange",), at="recv", layouts=_ODD, hangs=None)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage leaves out one receive, and continues with old numbers."""


@_fault("wrong_peer", "mismatched_collective", ("exchange",), at="send", layouts=_ODD)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage sends to a rank that does not expect it."""
    import torch.distributed as dist

    dist.send(tensor, next(rank for rank in range(point.world) if rank not in (point.rank, peer)))


@_fault("team_skipped", "missing_collective", ("team",), at="collective", layouts=_TEAMS, held_out=False)
@also("mismatched_collective", "the rank is in a collective of all ranks, its team in one of its own")
def _(point: InjectionPoint, tensor: Any) -> None:
    """A member of a team leaves out the team's sum, and comes to that of all ranks."""


@_fault("other_group_first", "mismatched_collective", ("team",), at="joint", layouts=_TEAMS, held_out=False)
@also("missing_collective", "it waits for all ranks, and never came to the sum of its team")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank makes the sum of all ranks before that of its team; the others do it in the other order."""
    import torch
    import torch.distributed as dist

    both = [lambda: dist.all_reduce(torch.zeros(8), group=group), lambda: dist.all_reduce(torch.zeros(8))]
    for each in reversed(both) if point.mine else both:
        each()


@_fault("one_microbatch_more", "mismatched_collective", ("team",), layouts=_ODD, held_out=False)
@also("missing_collective", "it waits for one more microbatch, and never comes to the sum of all ranks")
def _(point: InjectionPoint) -> None:
    """A stage expects one microbatch more than its neighbour sends."""
    import torch
    import torch.distributed as dist

    width = 2 if point.world == 4 else 1
    neighbour = point.rank - width if point.rank >= width else point.rank + width
    dist.recv(torch.empty(WIDTH, dtype=torch.float64), neighbour)


@_fault("all_send_first", "mismatched_collective", ("team",), blames=NOBODY, layouts=_ODD)
def _(point: InjectionPoint) -> None:
    """Every rank sends to the next one, and none receives."""
    import torch
    import torch.distributed as dist

    dist.send(torch.zeros(1 << 20), (point.rank + 1) % point.world)


# Healthy jobs


@_healthy("slow_stage", "forward", "3")
def _(point: InjectionPoint) -> None:
    """One stage takes 3 s for a microbatch."""
    time.sleep(3)


@_healthy("slow_stages", "backward", "2+2", blames=NOBODY)
def _(point: InjectionPoint) -> None:
    """Every stage takes 1.5 s for its backward pass."""
    time.sleep(1.5)


@_healthy("late_reader", "step", "4", at="data")
def _(point: InjectionPoint, path: str) -> None:
    """The thread that reads the data takes 3 s."""
    time.sleep(3)


@_healthy("long_save", "checkpoint", "3", at="storage")
def _(point: InjectionPoint, path: str) -> None:
    """The thread that saves takes 3 s, and the ranks wait for it."""
    time.sleep(3)


@_healthy("refused_metrics", "forward", "2")
def _(point: InjectionPoint) -> None:
    """A metrics service refuses connections; the rank logs tracebacks and continues."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    for _ in range(3):
        try:
            socket.create_connection(address)
        except OSError:
            logging.exception("metrics: connection lost")


@_healthy("dead_thread", "backward", "4")
def _(point: InjectionPoint) -> None:
    """A thread that does not matter ends with an exception."""
    _background(lambda: 1 // 0).join()
