"""Faults by which a rank waits for what is outside of its process: children, services, data, storage."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import logging
import logging.handlers
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from typing import NoReturn

from benchmarks.faults.corpus import (
    COUNTED,
    EVERYWHERE,
    NO_RANK,
    OWN_CODE,
    READS,
    STARTED,
    also,
    fault,
    held_out,
    second,
)
from benchmarks.faults.injection import InjectionPoint, ask


def _fifo(path: str, rank: int) -> str:
    os.mkfifo(other := f"{path}.{rank}.copy")
    return other


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


@second("saver_blocked", "checkpoint_io", ("checkpoint",), at="storage", needs=("fuse",))
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
