"""The fourth held-out set: DDP (`program_5`), FSDP2 (`program_6`), and the earlier programs.

Its author had not read the rules, nor the faults for which they were made. `make faults ARGS="-o fourth_set"` runs
these only. Each fault was checked by the exit codes and stacks of its ranks, without a verdict in view.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import ctypes
import errno
import faulthandler
import fcntl
import itertools
import logging
import logging.handlers
import math
import mmap
import multiprocessing
import os
import queue
import subprocess
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.file_baton import FileBaton

from benchmarks.faults.corpus import COUNTED, FINISHED, NO_RANK, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, no_core

_MANY = ("3", "2+2", "4", "2")
_two, _three = partial(fault, held_out=True, program=2), partial(fault, held_out=True, program=3)
_four = partial(fault, held_out=True, program=4, layouts=_MANY)
_ddp, _fsdp = (partial(fault, held_out=True, program=number, layouts=_MANY) for number in (5, 6))
_ddp_ends, _fsdp_ends = partial(_ddp, hangs=False), partial(_fsdp, hangs=False)
_ddp_odd, _fsdp_odd = (partial(one, hangs=None, layouts=THREE) for one in (_ddp, _fsdp))
_well_2, _well_3, _well_4, _well_5, _well_6 = (
    partial(healthy, held_out=True, program=number) for number in (2, 3, 4, 5, 6)
)
_LEFT_OUT = "the odd rank is in another call, so it is missing in the one in which the others wait"
_FORK = multiprocessing.get_context("fork")


def _anonymous(size: int) -> mmap.mmap:
    """A file without a name, mapped as long as it is, and truncated."""
    handle = os.memfd_create("part")
    os.ftruncate(handle, size)
    mapped = mmap.mmap(handle, size)
    os.ftruncate(handle, 0)
    return mapped


# In its own code


@_ddp("decodes_forever", "user_code", ("validation",), variants=(("validation", COUNTED),))
def _(point: InjectionPoint) -> None:
    """The evaluation, which one rank does alone, decodes a text whose end never comes."""

    def sample(text: list[int]) -> list[int]:
        while text[-1] != 2:
            text = [*text[-64:], (text[-1] * 5 + 3) % 65536 | 1]
        return text

    sample([1])


@_fsdp("backward_search", "user_code", ("backward",))
def _(point: InjectionPoint) -> None:
    """The backward of a custom autograd function looks for a step size that does not exist."""

    class Trust(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            size = 1.0
            while bool((gradients[0] * size).norm() >= 0.0):
                size = size / 2 or 1.0
            return gradients[0] * size

    leaf = torch.ones(8, requires_grad=True)
    Trust.apply(leaf).sum().backward()  # type: ignore[no-untyped-call]


@_four("clips_infinity", "user_code", ("backward",), at="hook")
def _(point: InjectionPoint) -> None:
    """A hook halves the gradient until its norm is small, and the gradient is infinite."""
    gradient = torch.full((8,), math.inf)
    while gradient.norm() > 1.0:
        gradient = gradient / 2


@_fsdp("drains_iterator", "gil", ("step",), variants=(("step", COUNTED),))
@also("user_code", "it computes without an end in its own code, and keeps the interpreter lock meanwhile")
def _(point: InjectionPoint) -> None:
    """A call of C drains an iterator that has no end."""
    collections.deque(itertools.cycle([0]), maxlen=0)


@_four("big_power", "gil", ("step",), at="data")
@also("data_loading", "the thread that keeps the interpreter lock reads the data")
def _(point: InjectionPoint, path: str) -> None:
    """A thread that reads data calculates a seed, a power of a hundred million digits."""
    pow(10**6, 10**8)


# Locks and what is like them


@_fsdp("barrier_in_lock", "lock", ("validation", "init"), at="joint", layouts=THREE, held_out=False)
@also("missing_collective", "its barrier is complete only when the others get the lock that it has")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank has the lock of a file and enters a barrier; the others wait for the lock first."""
    with open(point.folder / "cache.lock", "w") as file:
        time.sleep(0.0 if point.mine else 0.7)
        fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()


@_fsdp("awaits_event", "lock", ("validation",))
@also("user_code", "its event loop is idle: the program itself never sets the event")
def _(point: InjectionPoint) -> None:
    """Asynchronous code waits for an event that no task sets."""

    async def drain() -> None:
        await asyncio.Event().wait()

    asyncio.run(drain())


@_ddp("leftover_baton", "lock", ("init",), waits=True)
def _(point: InjectionPoint) -> None:
    """An extension is to be compiled, and the lock file of an earlier process is there."""
    (point.folder / "lock").touch()
    baton = FileBaton(str(point.folder / "lock"))
    if not baton.try_acquire():
        baton.wait()


# Children


@_four("log_shipper", "child", ("validation",))
@also("lock", "the main thread waits for the thread that writes to the child")
def _(point: InjectionPoint) -> None:
    """A queue listener writes to a child that does not read, and the rank stops the listener."""
    shipper = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, text=True)
    records: queue.Queue[Any] = queue.Queue()
    listener = logging.handlers.QueueListener(records, logging.StreamHandler(shipper.stdin))
    listener.start()
    for number in range(200):
        records.put(logging.makeLogRecord({"msg": f"{number} {'=' * 1000}"}))
    listener.stop()


@_ddp("daemon_keeps_output", "child", ("step", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """The output of a command is read to its end, and a daemon that the command started keeps it open."""
    subprocess.check_output(["sh", "-c", "sleep 600 & echo started"])


# Services


@_ddp("metrics_run", "network", ("step",))
@also("lock", "the main thread waits for room in the queue of the thread that uploads")
def _(point: InjectionPoint) -> None:
    """Metrics are logged into a queue; the thread that uploads them gets no answer."""
    rows: queue.Queue[dict[str, int]] = queue.Queue(16)

    def sync() -> None:
        while rows.get():
            ask(point.port)

    threading.Thread(target=sync, name="NetStatThr", daemon=True).start()
    for number in range(100):
        rows.put({"loss": number})


@_fsdp("parts_of_download", "network", ("forward",))
def _(point: InjectionPoint) -> None:
    """A file is downloaded in four parts by a pool of threads, and one part never comes."""
    with ThreadPoolExecutor(4) as pool:
        wait(
            [pool.submit(ask, point.port) if part == 2 else pool.submit(time.sleep, 0.1) for part in range(4)]
        )


@_fsdp("service_of_all", "network", ("step",), blames=NO_RANK)
def _(point: InjectionPoint) -> None:
    """All ranks ask the same service for the next part of a curriculum, and it answers none of them."""
    ask(point.port)


# Data


@_ddp("index_locked", "data_loading", ("step",), at="data")
@also("lock", "the worker waits for the lock of a file")
def _(point: InjectionPoint, path: str) -> None:
    """A worker locks the index of a shard, which another process has locked."""
    with open(point.folder / "locked") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


@_fsdp("half_a_shard", "data_loading", ("step",), at="data")
def _(point: InjectionPoint, path: str) -> None:
    """A worker reads a pipe into which a downloader has written half of a shard."""
    reader, writer = os.pipe()
    with (
        subprocess.Popen(["sh", "-c", "printf 12; exec sleep 600"], stdout=writer),
        os.fdopen(reader) as file,
    ):
        os.close(writer)
        file.read(8)


@_fsdp_odd("short_stream", "mismatched_collective", ("step",), at="data")
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint, path: str) -> str:
    """An iterable dataset has fewer rows on one rank, which leaves the loop before the others."""
    return f"{path}.none"


@_ddp_ends("worker_bus_error", "data_loading", ("step",), at="data", held_out=False)
@also("exception", "the loader raises in the rank because its worker was killed")
def _(point: InjectionPoint, path: str) -> None:
    """A worker reads a mapped shard of which another process has truncated the file."""
    no_core()
    bytes(_anonymous(1 << 16))


@_fsdp_ends("corrupted_shard", "exception", ("step",), at="data")
@also("data_loading", "the exception comes from a worker of the loader")
def _(point: InjectionPoint, path: str) -> None:
    """A shard is no valid archive."""
    zlib.decompress(b"x\x9c" + bytes(64))


@_ddp_ends("worker_leaks", "out_of_memory", ("step",), at="data", needs=("cgroup",))
@also("data_loading", "the loader raises in the rank because its worker was killed")
def _(point: InjectionPoint, path: str) -> None:
    """A worker keeps every picture that it decodes, until the kernel kills it."""
    Path((point.folder / "cgroup").read_text(), "cgroup.procs").write_text(str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(b"\1") * (4 << 20))


# Checkpoints


@_ddp("bucket_stalls", "checkpoint_io", ("checkpoint",), at="storage")
def _(point: InjectionPoint, path: str) -> None:
    """The thread of an asynchronous checkpoint opens a pipe whose reader never comes."""
    os.mkfifo(f"{path}.pipe")
    with open(f"{path}.pipe", "wb") as file:
        file.write(b"x")


@_fsdp("save_locked", "checkpoint_io", ("checkpoint",), at="storage")
@also("lock", "it waits for the lock of a file in which it saves")
def _(point: InjectionPoint, path: str) -> None:
    """The folder of checkpoints has a lock file, which a backup has locked."""
    with open(point.folder / "locked", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@_fsdp_ends("no_room_to_save", "exception", ("checkpoint",), at="storage")
@also("checkpoint_io", "the write of a checkpoint fails")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """One rank has no space for its shards; torch raises in all ranks, and names that one."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


# Ends


@_fsdp_ends("unknown_token", "exception", ("step", "validation"))
def _(point: InjectionPoint) -> None:
    """A dictionary lacks a token that only this rank's data has."""
    {"the": 0, "a": 1}["\ufffd"]


@_three("unknown_option", "exit", ("init",), hangs=False)
def _(point: InjectionPoint) -> None:
    """The options of one rank are wrong: argparse ends it."""
    argparse.ArgumentParser().parse_args(["--local-rnak=1"])


@_two("own_watchdog", "exit", ("forward",), hangs=False)
def _(point: InjectionPoint) -> None:
    """The watchdog of the program prints the stacks and ends the rank, which is too slow for it."""
    faulthandler.dump_traceback_later(1.0, exit=True)
    time.sleep(5)


@_ddp_ends("cache_grows", "out_of_memory", ("validation",), needs=("cgroup",))
def _(point: InjectionPoint) -> None:
    """A rank keeps all outputs of its evaluation, until the kernel kills it."""
    Path((point.folder / "cgroup").read_text(), "cgroup.procs").write_text(str(os.getpid()))
    kept = {}
    for number in itertools.count():
        kept[number] = bytearray(b"\1") * (1 << 20)


@_three("divides_by_zero", "signal", ("forward",), hangs=False)
def _(point: InjectionPoint) -> None:
    """An extension in C divides by zero: SIGFPE."""
    no_core()
    ctypes.CDLL(None).div(1, 0)


@_two("thread_segfaults", "signal", ("step",), hangs=False, layouts=THREE)
def _(point: InjectionPoint) -> None:
    """A thread in the background reads an invalid address, and the main thread computes."""
    no_core()
    threading.Timer(0.3, ctypes.string_at, (8,)).start()
    time.sleep(2)


@_four("truncated_tokens", "signal", ("step",), at="data", hangs=False)
def _(point: InjectionPoint, path: str) -> None:
    """A thread reads tokens of a mapped file, which was truncated: SIGBUS."""
    no_core()
    bytes(_anonymous(1 << 20)[:4096])


# Collectives


@_ddp_odd("no_sync", "mismatched_collective", ("forward",))
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """One rank counts its accumulated steps from 1: its DDP does not sum the gradients of this step."""
    point.ward.net.require_backward_grad_sync = False  # as no_sync


@_four("tag_of_another", "mismatched_collective", ("exchange",), at="send", layouts=THREE)
@also("missing_collective", "the send that the peer waits for is missing")
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage sends with the tag of another microbatch."""
    dist.send(tensor, peer, tag=7)


@_fsdp_odd("skips_save", "missing_collective", ("checkpoint",), at="collective")
@also(
    "mismatched_collective",
    "it is in the next step's collective, and the others are in those of the checkpoint",
)
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank does not take part in the saving of a sharded checkpoint."""


@_three("group_alone", "mismatched_collective", ("team", "validation"), layouts=THREE)
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """One rank makes a group, which all ranks have to make."""
    dist.new_group([*range(point.world)])


@_ddp("lonely_barrier", "mismatched_collective", ("validation", "step"), layouts=THREE, hangs=None)
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """One rank calls a barrier after its evaluation, or before a step, and the others do not."""
    dist.barrier()


@_ddp_odd("joined_early", "mismatched_collective", ("validation",), at="joint")
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank has fewer inputs and joins; the others log with a collective that Join does not shadow."""
    _uneven(1 if point.mine else 3, logs=True)


@_fsdp_odd("uneven_gather", "mismatched_collective", ("collective",), at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank gathers more predictions than the others, after an uneven batch."""
    own = torch.zeros(70_000 if point.mine else 60_000)
    dist.all_gather([torch.empty_like(own) for _ in range(point.world)], own)


def _uneven(count: int, logs: bool) -> None:
    """DDP with Join on this number of inputs."""
    head = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([head]):
        for _ in range(count):
            loss = head(torch.ones(2, 4)).sum()
            if logs:
                dist.all_gather([torch.zeros(()) for _ in range(dist.get_world_size())], loss.detach())
            loss.backward()


# The end


@_four("forgotten_process", "shutdown", ("shutdown",), options=FINISHED)
@also("child", "the interpreter waits at its end for a process that the rank has started")
def _(point: InjectionPoint) -> None:
    """A process that mirrors files is never stopped, and multiprocessing joins it at the end."""
    _FORK.Process(target=time.sleep, args=(600,)).start()


# Healthy jobs


@_well_5("uneven_join", "validation", "3", at="joint", blames=NO_RANK)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """Ranks with different numbers of inputs train with Join."""
    _uneven(1 + point.rank, logs=False)


@_well_5("slow_shards", "checkpoint", at="storage")
def _(point: InjectionPoint, path: str) -> None:
    """The thread of an asynchronous checkpoint needs 2.5 s."""
    time.sleep(2.5)


@_well_6("tools_crash", "step", "3")
def _(point: InjectionPoint) -> None:
    """A tool has a segmentation fault, a child exits with 3, and both are run again."""
    for line in ("ulimit -c 0; kill -SEGV $$", "exit 3", "true"):
        subprocess.run(["sh", "-c", line])
    process = _FORK.Process(target=os._exit, args=(3,))
    process.start()
    process.join()


@_well_3("waits_for_lock", "validation", "4")
def _(point: InjectionPoint) -> None:
    """The lock of a file is free after 1.5 s."""
    with open(point.folder / "own.lock", "w") as file, open(point.folder / "own.lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(1.5, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        fcntl.flock(file, fcntl.LOCK_EX)
