"""Faults by which a rank waits for what is outside of its process: children, services, data, storage, other ranks."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.faults.corpus import COUNTED, EVERYWHERE, NOBODY, OWN_CODE, READS, STARTED, THREE, also, fault
from benchmarks.faults.injection import InjectionPoint

_AT_START = {"init": ("checkpoint_io", "startup")}


def _ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET\n")
        connection.recv(1)


def _fifo(path: str, rank: int) -> str:
    os.mkfifo(other := f"{path}.{rank}.copy")
    return other


# Children


@fault("child", "child", ("import", *OWN_CODE, "shutdown"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for a program that does not end."""
    subprocess.run(["sleep", "3600"], check=True)


@fault("wait_for_child", "child", OWN_CODE, waits=True)
def _(point: InjectionPoint) -> None:
    """A rank waits for a child that it forked."""
    if (pid := os.fork()) == 0:
        time.sleep(3600)
        os._exit(0)
    os.waitpid(pid, 0)


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


# Services


@fault("socket", "network", EVERYWHERE, waits=True)
def _(point: InjectionPoint) -> None:
    """A service accepts the connection and does not answer."""
    _ask(point.port)


@fault("http", "network", OWN_CODE, waits=True)
def _(point: InjectionPoint) -> None:
    """A web server does not answer."""
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"http://127.0.0.1:{point.port}/weights"
    )


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


# Data


@fault("worker_stopped", "data_loading", READS, at="data", workers=1, variants=(("step", COUNTED),))
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader is stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("worker_sleeps", "data_loading", READS, at="data", workers=1)
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader does not come back from __getitem__."""
    time.sleep(3600)


@fault("worker_lock", "data_loading", READS, at="data", workers=1)
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader waits for a lock that is taken."""
    guard = threading.Lock()
    with guard, guard:
        pass


@fault("dataset_file", "data_loading", READS, at="data")
def _(point: InjectionPoint, path: str) -> str:
    """A file of the dataset cannot be read, as on a filesystem that is gone."""
    return _fifo(path, point.rank)


@fault("all_files", "data_loading", READS, at="data", blames=NOBODY)
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
    _ask(point.port)


@fault("prefetcher", "data_loading", READS, at="data")
@also("lock", "it waits for its data, and the means is a queue of its own process")
def _(point: InjectionPoint, path: str) -> None:
    """The thread that reads ahead has died, and the rank waits for its queue."""
    items: queue.Queue[str] = queue.Queue()
    ahead = threading.Thread(target=lambda: None)
    ahead.start()
    ahead.join()
    items.get()


# Storage


@fault(
    "storage",
    "checkpoint_io",
    ("init", "checkpoint"),
    in_phase=_AT_START,
    at="storage",
    variants=(("checkpoint", COUNTED),),
)
def _(point: InjectionPoint, path: str) -> str:
    """A checkpoint's file cannot be written or read."""
    return _fifo(path, point.rank)


@fault(
    "all_storage", "checkpoint_io", ("init", "checkpoint"), in_phase=_AT_START, at="storage", blames=NOBODY
)
def _(point: InjectionPoint, path: str) -> str:
    """The checkpoints' storage is gone: every rank writes, none finishes."""
    return _fifo(path, point.rank)


@fault("slow_storage", "checkpoint_io", ("checkpoint",), at="storage")
def _(point: InjectionPoint, path: str) -> str:
    """The storage takes the checkpoint's bytes one by one."""
    return str(point.folder / "slow")  # read by `fixtures`, five bytes a second


@fault("saving_thread", "checkpoint_io", ("checkpoint",), at="storage")
@also("lock", "the main thread waits for another thread, and that one for the storage")
def _(point: InjectionPoint, path: str) -> str:
    """A thread saves the checkpoint and is blocked by its storage; the rank waits for it."""

    def put(other: str) -> None:
        with open(other, "w") as file:
            file.write("weights")

    thread = threading.Thread(target=put, args=(_fifo(path, point.rank),), daemon=True)
    thread.start()
    thread.join()
    return ""


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


# Other ranks, which disagree about a collective. Three ranks or more: of two, the odd one cannot be named. On gloo most
# of these end with an error, often of a rank that did nothing wrong, where the odd rank's message is longer than
# expected, and otherwise hang.

_ALL = ("init", "collective", "validation", "checkpoint")
_ODD = "the odd rank is in another collective, and so not in the one in which the others wait"
_odd = partial(fault, layouts=THREE, hangs=None)
_mismatch = partial(_odd, verdict="mismatched_collective", phases=_ALL[1:])


@_mismatch("skipped", at="collective")
@also("missing_collective", _ODD)
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank leaves out an all-reduce, and comes to the next collective."""


@_mismatch("one_more", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank takes part in an all-reduce that no other rank makes."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1024))
    dist.all_reduce(tensor)


@_mismatch("other_operation", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank broadcasts where the others reduce."""
    import torch.distributed as dist

    dist.broadcast(tensor, point.rank)


@_mismatch("other_size", phases=_ALL[:3], at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces a tensor of another size."""
    import torch.distributed as dist

    dist.all_reduce(tensor.repeat(4))


@_mismatch("other_type", at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces another type of number."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(tensor.to(torch.float32))


@_mismatch("other_order", at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank makes two collectives in the other order."""
    import torch
    import torch.distributed as dist

    both = [lambda: dist.all_reduce(torch.zeros(64)), lambda: dist.broadcast(torch.zeros(8), 0)]
    for each in reversed(both) if point.mine else both:
        each()


@_odd("left_out_of_group", "missing_collective", (*_ALL[1:], "shutdown"), hangs=True, at="joint")
@also("mismatched_collective", _ODD)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A member of a group does not come to the group's collective, and waits in one of all ranks."""
    import torch
    import torch.distributed as dist

    if not point.mine:
        dist.all_reduce(torch.zeros(8), group=group)


@_mismatch("never_received", at="joint")
@also(
    "missing_collective",
    "it is in another collective, and never came to the receive for which its neighbour waits",
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not receive what another sends to it."""
    _around(sends=True, receives=not point.mine)


@_mismatch("never_sent", at="joint")
@also(
    "missing_collective",
    "it is in another collective, and never came to the send for which its neighbour waits",
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not send what another waits for."""
    _around(sends=not point.mine, receives=True)


@_mismatch("uneven_data", phases=("collective",), at="loop")
@also("missing_collective", "it waits in the barrier at the end, and never came to the last all-reduce")
def _(point: InjectionPoint) -> None:
    """One rank has less data, leaves the loop early and waits at the end."""


def _around(*, sends: bool, receives: bool) -> None:
    """Each rank's tensor to the next one."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    works = []
    if sends:
        works.append(dist.isend(torch.full((4,), float(rank)), (rank + 1) % world))
    if receives:
        works.append(dist.irecv(torch.empty(4), (rank - 1) % world))
    for work in works:
        if work is not None:
            work.wait()
