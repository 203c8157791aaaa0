"""Faults by which a rank waits: for a lock or a thread, a child, a service, data or storage."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import http.client
import logging
import logging.handlers
import multiprocessing
import os
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from benchmarks.faults.corpus import (
    COUNTED,
    EVERYWHERE,
    NO_RANK,
    OWN_CODE,
    READS,
    STARTED,
    TRAINING,
    also,
    fault,
    held_out,
    second,
)
from benchmarks.faults.injection import InjectionPoint, ask, background


def _fifo(path: str, rank: int) -> str:
    os.mkfifo(other := f"{path}.{rank}.copy")
    return other


# For a lock, a queue, a thread or a future of its own process


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


@second("import_lock", "lock", ("forward", "backward"))
@also("user_code", "the thread that has the import lock sleeps in a module of the program")
def _(point: InjectionPoint) -> None:
    """A thread never finishes an import, and the main thread imports the same module."""
    name = f"lazy_part_{point.rank}"
    (point.folder / f"{name}.py").write_text("import time\ntime.sleep(3600)\n")
    sys.path.insert(0, str(point.folder))
    background(__import__, name)
    time.sleep(0.3)
    __import__(name)


@second("log_lock", "lock", ("step", "exchange"))
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

    background(flood)
    time.sleep(0.5)
    logger.warning("loss")


@second("future_never_done", "lock", ("forward", "team"))
def _(point: InjectionPoint) -> None:
    """A rank waits in native code for a future that is never completed."""
    import torch

    torch.futures.Future[int]().wait()


@second("full_queue", "lock", ("step", "team"))
def _(point: InjectionPoint) -> None:
    """A rank puts its metrics into a bounded queue, and the thread that takes them out has died."""
    metrics: queue.Queue[float] = queue.Queue(4)
    writer = threading.Thread(target=metrics.get, daemon=True)
    writer.start()
    while True:
        metrics.put(1.0)


@second("blocked_loop", "lock", ("forward", "checkpoint"))
@also("user_code", "a callback of the program sleeps on the event loop's thread, for which the rank waits")
def _(point: InjectionPoint) -> None:
    """A rank waits for a coroutine, and a callback blocks the event loop that is to run it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    loop.call_soon_threadsafe(time.sleep, 3600)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()


# For a lock of another process


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


@second("database_lock", "lock", ("step", "checkpoint"))
@also("user_code", "SQLite sleeps between its attempts, in the rank itself")
def _(point: InjectionPoint) -> None:
    """Another process has locked the database into which a rank writes its metrics."""
    sqlite3.connect(point.folder / "metrics.db", timeout=3600).execute("insert into loss values (1)")


@fault("cache_under_lock", "user_code", ("collective", "checkpoint"), at="joint", layouts=("4", "3", "2"))
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank computes a cache forever and has locked its file; the others wait for this lock."""
    if not point.mine:
        time.sleep(0.5)
    with open(point.folder / "cache", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        number = 1
        while point.mine:
            number = number * 48271 % 2147483647


# Children


@fault("child", "child", ("import", *OWN_CODE, "shutdown"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for a program that does not end."""
    subprocess.run(["sleep", "3600"], check=True)


@fault("output_of_child", "child", OWN_CODE, waits=True)
def _(point: InjectionPoint) -> None:
    """A rank reads what its child never writes."""
    with subprocess.Popen(["sleep", "3600"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


@fault("question", "user_code", ("import", "init", "step", "checkpoint"), waits=True)
def _(point: InjectionPoint) -> None:
    """A library asks the user a question, and there is no user."""
    reader, _ = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    input("overwrite the log directory? [y/n] ")


@fault("uninterruptible", "uninterruptible", STARTED)
@also("child", "the kernel waits there for a child that the rank starts")
def _(point: InjectionPoint) -> None:
    """A rank is blocked in the kernel in state D."""
    # The child opens it before its exec, and shares the parent's memory until then: the kernel keeps the parent in D.
    # By way of ctypes, as Python's own posix_spawn would keep the GIL.
    path = str(point.folder / f"program-{point.rank}")
    os.mkfifo(path)
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(256)  # larger than posix_spawn_file_actions_t anywhere
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, path.encode(), os.O_RDONLY, 0)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    variables = (ctypes.c_char_p * (len(os.environb) + 1))(
        *(k + b"=" + v for k, v in os.environb.items()), None
    )
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, arguments, variables)


@second("pool_of_processes", "child", ("init", "forward"), waits=True)
@also("lock", "the means by which it waits for its child is a lock of its own process")
def _(point: InjectionPoint) -> None:
    """A rank waits for the result of a process pool whose process sleeps."""
    multiprocessing.get_context("fork").Pool(1).map(time.sleep, [3600])


@second("pool_process_killed", "child", ("forward", "checkpoint"))
@also("lock", "the pool has a new process, and a result that is never given")
def _(point: InjectionPoint) -> None:
    """A process of a pool is killed, and the pool waits for its result forever."""
    multiprocessing.get_context("fork").Pool(1).map(os._exit, [137])


@second("unread_output", "child", ("step", "exchange"))
def _(point: InjectionPoint) -> None:
    """A rank waits for a tool to end, which cannot as its output is a pipe that the rank does not read."""
    subprocess.Popen(["seq", "1000000"], stdout=subprocess.PIPE).wait()


# Services


@fault("socket", "network", EVERYWHERE, waits=True)
def _(point: InjectionPoint) -> None:
    """A service accepts the connection and does not answer."""
    ask(point.port)


@fault("connect", "network", ("import", "init", "step", "checkpoint"), waits=True)
def _(point: InjectionPoint) -> None:
    """A machine does not answer to a connection's first packet."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # What the backlog takes; the next one's first packet is not answered.
        kept = []
        for _ in range(4):
            kept.append(socket.socket())
            kept[-1].setblocking(False)
            kept[-1].connect_ex(listener.getsockname())
        socket.create_connection(listener.getsockname())


@fault("store", "network", OWN_CODE, waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for a key of the store that is never set."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1))
    store.get("vocabulary")


@second("asyncio_service", "network", ("init", "forward"), waits=True, held_out=False)
def _(point: InjectionPoint) -> None:
    """An event loop waits for a service that does not answer."""

    async def fetch() -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", point.port)
        await reader.read(1)

    asyncio.run(fetch())


@second("dripping_service", "network", ("step", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A service sends its answer byte by byte."""
    port = int((point.folder / "dripping").read_text())
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answer:
        answer.read(1 << 20)


@second("log_collector", "network", ("team",))
def _(point: InjectionPoint) -> None:
    """A rank logs over TCP to a collector that reads nothing."""
    logger = logging.getLogger("collected")
    logger.propagate = False
    address = ("127.0.0.1", point.port)
    logger.addHandler(logging.handlers.SysLogHandler(address, socktype=socket.SOCK_STREAM))
    while True:
        logger.warning("x" * 100_000)


# Data


@fault("worker_stopped", "data_loading", READS, at="data", workers=1, variants=(("step", COUNTED),))
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader is stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("worker_sleeps", "data_loading", READS, at="data", workers=1)
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader does not come back from __getitem__."""
    time.sleep(3600)


@fault("dataset_file", "data_loading", READS, at="data")
def _(point: InjectionPoint, path: str) -> str:
    """A file of the dataset cannot be read, as on a filesystem that is gone."""
    return _fifo(path, point.rank)


@fault("all_files", "data_loading", READS, at="data", blames=NO_RANK)
def _(point: InjectionPoint, path: str) -> str:
    """The dataset's storage is gone: every rank reads, none gets anything."""
    return _fifo(path, point.rank)


@fault("dataset_sleeps", "data_loading", READS, at="data")
@also("user_code", "the loader calls the program's own code, which sleeps")
def _(point: InjectionPoint, path: str) -> None:
    """The dataset sleeps in the rank itself."""
    time.sleep(3600)


@fault("dataset_server", "data_loading", READS, at="data")
@also("network", "its data has to come from another machine, which does not answer")
def _(point: InjectionPoint, path: str) -> None:
    """The server that the dataset reads from does not answer."""
    ask(point.port)


@second("reader_thread_died", "data_loading", ("step",), at="data")
@also("lock", "it waits for its data, and the means is a queue of its own process")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The thread that reads the data raises, and the main thread waits for its queue."""
    raise KeyError("shard 17 has no index")


@second("dataset_mount_hangs", "data_loading", ("step",), at="data", needs=("fuse",))
@also("lock", "the main thread waits for a queue of its own process, and its thread for the file")
def _(point: InjectionPoint, path: str) -> str:
    """The thread that reads the data is blocked in a filesystem that does not answer."""
    return str(point.folder / "mounted" / "shard")


@held_out("own_reader_process", "data_loading", READS, at="data")
@also("child", "it waits for the process that it started to read, and that one has ended")
def _(point: InjectionPoint, path: str) -> None:
    """The program's own reading process has ended with code 1, and the rank waits for its queue."""
    context = multiprocessing.get_context("fork")
    samples = context.Queue()
    context.Process(target=os._exit, args=(1,), daemon=True).start()
    samples.get()


# Storage


_storage = partial(fault, verdict="checkpoint_io", phases=("init", "checkpoint"), waits=True, at="storage")


@_storage("storage", variants=(("checkpoint", COUNTED),))
def _(point: InjectionPoint, path: str) -> str:
    """A checkpoint's file cannot be written or read."""
    return _fifo(path, point.rank)


@_storage("all_storage", blames=NO_RANK)
def _(point: InjectionPoint, path: str) -> str:
    """The checkpoints' storage is gone: every rank writes, none finishes."""
    return _fifo(path, point.rank)


@fault("slow_storage", "checkpoint_io", ("checkpoint",), at="storage")
def _(point: InjectionPoint, path: str) -> str:
    """The storage takes the checkpoint's bytes one by one."""
    return str(point.folder / "slow")  # read by `fixtures`, five bytes a second


@fault("saving_child", "child", ("checkpoint",), at="storage")
@also("checkpoint_io", "the rank waits for its child, and that one for the storage")
def _(point: InjectionPoint, path: str) -> str:
    """A child process saves the checkpoint and is blocked by its storage; the rank waits for it."""
    os.mkfifo(fifo := f"{path}.fifo")
    if (pid := os.fork()) == 0:
        with open(fifo, "w"):
            os._exit(0)
    os.waitpid(pid, 0)
    return ""


@fault("hung_filesystem", "checkpoint_io", ("checkpoint",), at="storage", needs=("fuse",))
@also("uninterruptible", "the kernel waits for the filesystem in a way that most signals do not end")
def _(point: InjectionPoint, path: str) -> str:
    """The checkpoint's filesystem does not answer any more."""
    return str(point.folder / "mounted" / "part")


@second("saver_blocked", "checkpoint_io", ("checkpoint",), at="storage", needs=("fuse",), held_out=False)
@also("lock", "the main thread waits for another thread, and that one for the storage")
def _(point: InjectionPoint, path: str) -> str:
    """The thread that saves is blocked in storage; the main thread trains for two steps and then waits for it."""
    return str(point.folder / "mounted" / "part")


@second("saver_thread_died", "lock", ("checkpoint",), at="storage")
@also("checkpoint_io", "it waits for its checkpoint, and the means is an event of its own process")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The thread that saves raises, and the main thread waits for it two steps later."""
    raise OSError(5, "Input/output error", path)


@held_out("object_store", "checkpoint_io", ("checkpoint",), at="storage")
@also("network", "the checkpoint's storage is another machine's service, which reads nothing")
def _(point: InjectionPoint, path: str) -> str:
    """A rank saves its part into an object store, which does not take it."""
    client = http.client.HTTPConnection("127.0.0.1", point.port)
    client.request("PUT", f"/{os.path.basename(path)}", body=bytes(64 << 20))
    return ""
