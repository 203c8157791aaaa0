"""The seventh held-out set: experts on all ranks (`program_9`), and earlier programs.

Its author had not read the rules, and checked each fault without a verdict in view.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import mmap
import os
import platform
import queue
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.faults.corpus import COUNTED, NO_RANK, SHELL, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, background, no_core

_own = partial(fault, held_out=True, layouts=("4", "3", "2+2", "3"))
_four, _six, _eight, _nine = (partial(_own, program=number) for number in (4, 6, 8, 9))
_well = partial(healthy, held_out=True, program=9)
_LIBC = ctypes.CDLL(None)
_FORWARD = "import socket, sys; near = socket.socket(fileno=int(sys.argv[2])).accept(); "
_FETCH = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
_LEFT_OUT = "it is in another call, and so not in the one in which the others wait"


def _compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


# The services of the ranks


# All others wait for one rank, which waits for the thread of this one, and that for a lock of its main thread.
@_nine("lock_left_taken", "lock", ("backward",), held_out=False)
def _(point: InjectionPoint) -> None:
    """A rank never gives back a lock, which the thread that serves its neighbour takes next."""
    point.ward.gate.acquire()


@_nine("rater_asks_tracker", "network", ("team",))
def _(point: InjectionPoint) -> None:
    """The thread that serves a rank's neighbour asks a tracker, which does not answer."""
    ask(point.port)


# Its neighbour ends, as the answer is empty; the error and its text are those of this rank.
@_nine("rater_raises", "exception", ("team",), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """The thread that serves a rank's neighbour raises, which closes the connection."""
    raise KeyError("no scale for the load of step 6")


# It asks for nothing and waits for an answer; the service of the other rank waits for a question.
@_nine("awaits_no_answer", "network", ("validation",))
def _(point: InjectionPoint) -> None:
    """A rank reads one answer more from its neighbour's service than it has asked for."""
    point.ward.next.readline()


# Each rank has the lock that the service for another one needs.
@_nine("ring_of_locks", "lock", ("checkpoint",), layouts=("3", "4"), blames=NO_RANK)
@also("network", "the main thread of each rank waits for the answer of the next one")
def _(point: InjectionPoint) -> None:
    """All ranks ask their neighbours, each with the lock that its own service needs."""
    with point.ward.gate:
        time.sleep(0.5)
        point.ward.ask(8)


# Threads and locks


@_eight("thread_barrier", "lock", ("forward", "validation"))
def _(point: InjectionPoint) -> None:
    """Two threads meet at a barrier, and one of them has died on its way there."""
    barrier = threading.Barrier(2)
    background(lambda: (int("1_6_"), barrier.wait()))
    barrier.wait()


@_four("pool_in_pool", "lock", ("backward",), variants=(("validation", COUNTED),))
def _(point: InjectionPoint) -> None:
    """The only thread of a pool waits for a part that the same pool is to do."""
    pool = ThreadPoolExecutor(1)
    pool.submit(lambda: pool.submit(os.getpid).result()).result()


# SystemExit ends a thread without a word. The main thread waits for data.
@_nine("reader_leaves", "data_loading", ("step",), at="data", variants=(("step", COUNTED),))
@also("lock", "the rank waits for a queue that its own thread should fill")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """The thread that reads ahead calls sys.exit() at a bad row, which ends this thread alone."""
    sys.exit(1)


@_nine("joins_queue", "lock", ("shutdown",), waits=True)
def _(point: InjectionPoint) -> None:
    """At its end a rank waits for a queue, of which one task was taken and never marked as done."""
    uploads = queue.Queue[str]()
    uploads.put("step 12")
    background(uploads.get).join()
    uploads.join()


# Services and children


@_nine("tls_handshake", "network", ("init", "exchange"), waits=True)
def _(point: InjectionPoint) -> None:
    """A service accepts the connection, and does not answer to the first message of TLS."""
    link = socket.create_connection(("127.0.0.1", point.port))
    ssl.create_default_context().wrap_socket(link, server_hostname="tracker.example.org")


@_four("fetched_by_child", "child", ("checkpoint",))
@also("network", "what the child waits for is a service")
def _(point: InjectionPoint) -> None:
    """A rank runs a tool that downloads a file, from a service that does not answer."""
    subprocess.run([sys.executable, "-c", _FETCH, str(point.port)])


# Its peer is its own child, which does what it should; the service behind it does not answer.
@_eight("tunnel", "network", ("step",))
@also("child", "the connection ends in a process that it started")
def _(point: InjectionPoint) -> None:
    """A rank asks a service through a tunnel, a child of its own, and the service does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as near:
        tool = [sys.executable, "-c", _FORWARD + _FETCH, str(point.port), str(near.fileno())]
        subprocess.Popen(tool, pass_fds=[near.fileno()])
        ask(near.getsockname()[1])


@_eight("both_pipes", "child", ("backward", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A rank writes into a tool, which waits until its own output is read, and the rank does that later."""
    tool = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tool.stdin is not None
    tool.stdin.write(bytes(1 << 20))


@_six("awaits_all_children", "child", ("validation",))
def _(point: InjectionPoint) -> None:
    """A rank waits for all of its children, and one of them is a service that never ends."""
    for tool in (["true"], ["sleep", "300"]):
        subprocess.Popen(tool)
    while True:
        os.wait()


# The others end with errors of their own, which say that they have waited for 2 s.
@_nine("gives_up_first", "child", ("validation",), at="joint", hangs=None)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank runs a tool without an end; the others wait 2 s in a group for it, and raise."""
    import torch.distributed as dist

    hasty = dist.new_group(timeout=timedelta(seconds=2))
    if point.mine:
        subprocess.run(["sleep", "300"])
    dist.all_reduce(tensor, group=hasty)


# A rank's own code


@_nine("scripted_loop", "user_code", ("forward",), variants=(("step", COUNTED),))
def _(point: InjectionPoint) -> None:
    """A scripted function, which runs without the interpreter, iterates until a number is exact."""
    import torch

    code = "def settle(x: float) -> float:\n  while x != 0.5:\n    x = 1.0 - x\n  return x\n"
    torch.jit.CompilationUnit(code).settle(0.1)


@_nine("shrinks_batch", "user_code", ("forward",), held_out=False)
def _(point: InjectionPoint) -> None:
    """A rank looks for a batch that fits into its memory, and tries the same one again and again."""
    import torch

    while True:
        with suppress(RuntimeError):
            torch.empty(1 << 60)
            return
        gc.collect()
        time.sleep(0.1)


# All move, and all but one only as fast as this one.
@_nine("slow_of_one", "user_code", ("validation",), at="joint", layouts=THREE)
@also("slow", "it comes to each collective of its evaluation, and the limit is too short for it")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """Ranks evaluate a hundred batches, and one of them computes 0.4 s for each."""
    import torch.distributed as dist

    for _ in range(100):
        _compute(0.4 if point.mine else 0)
        dist.all_reduce(tensor)


@_nine("long_evaluation", "slow", ("validation",), at="joint", layouts=("3", "2+2"), blames=NO_RANK)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """The evaluation has become ten times longer than its limit; all ranks move through its batches."""
    import torch.distributed as dist

    for _ in range(400):
        _compute(0.1)
        dist.all_reduce(tensor)


# Stops and ends


@_nine("snapshot_tool_killed", "stopped", ("collective", "exchange"), anywhere=True)
def _(point: InjectionPoint) -> None:
    """A tool stops a rank for a snapshot, and is killed before it continues it."""
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; kill -KILL $$"])


@_nine("file_too_large", "exception", ("checkpoint",), at="storage", hangs=False)
@also("checkpoint_io", "what fails is the write of a checkpoint")
def _(point: InjectionPoint, path: str) -> None:
    """A part of a checkpoint is larger than the limit for files."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    Path(path).write_bytes(bytes(1 << 22))


@_nine("no_threads", "exception", ("exchange",), hangs=False)
@also("out_of_memory", "there is no room for the stack of a thread")
def _(point: InjectionPoint) -> None:
    """A rank has reached its limit of address space, and starts a thread."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + (4 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for _ in range(9):
        background(time.sleep, 60)


@_eight("double_free", "signal", ("forward",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A native library frees the same memory twice, and libc aborts."""
    no_core()
    _LIBC.malloc.restype = ctypes.c_void_p
    block = ctypes.c_void_p(_LIBC.malloc(64))
    _LIBC.free(block)
    _LIBC.free(block)


@_nine("wrong_cpu", "signal", ("init", "backward"), hangs=False)
def _(point: InjectionPoint) -> None:
    """A library was built for another processor: SIGILL."""
    no_core()
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\x0b" if platform.machine() == "x86_64" else bytes(4))
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


@_eight("killed_by_own_guard", "signal", ("team",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A child that guards the memory of a rank kills it with -9."""
    subprocess.run(["sh", "-c", "kill -KILL $PPID; sleep 60"])


@_four("exits_with_text", "exit", ("exchange",), variants=(("step", SHELL),), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A rank ends with sys.exit() and a text, which is code 1."""
    sys.exit("the vocabulary has 50304 tokens, and the model 50257")


# Its process has ended well; the reason is in its log.
@_four("logs_and_leaves", "early_exit", ("exchange",), hangs=None)
@also("exception", "the exception that it caught has ended it")
def _(point: InjectionPoint) -> NoReturn:
    """A rank catches an exception, logs it, and ends with code 0."""
    try:
        raise LookupError("no rows for step 6")
    except LookupError:
        logging.exception("training failed")
        sys.exit(0)


@_eight("episode_times_out", "exception", ("step",), hangs=False)
def _(point: InjectionPoint) -> None:
    """An environment needs too long, and the limit of the event loop raises an exception without a text."""
    asyncio.run(asyncio.wait_for(asyncio.sleep(60), 0.2))


@_eight("unpicklable_marks", "exception", ("validation",), at="joint", hangs=False)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank gathers an object that cannot be pickled."""
    import torch.distributed as dist

    marks: list[Any] = [None] * point.world
    dist.all_gather_object(marks, (lambda: 0) if point.mine else 0)


@_nine("token_out_of_range", "exception", ("backward",), at="hook", hangs=False)
def _(point: InjectionPoint) -> None:
    """In the backward pass a rank looks up a token for which the table has no row."""
    import torch

    torch.nn.functional.embedding(torch.tensor([8]), torch.zeros(8, 2))


# Collectives


@_nine("recomputes_alone", "mismatched_collective", ("exchange",), layouts=THREE, hangs=None)
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """One rank recomputes its tokens' way to the experts, one all-to-all more than the others make."""
    import torch

    program: Any = sys.modules["__main__"]
    leave, arrive = map(len, program.TRACKS), [len(program.MINE)] * point.world
    program.swap(torch.zeros(8, dtype=torch.float64), [*leave], arrive)


# The one that aborts is the one that received too much. Its text names no peer, and all end within a moment.
@_nine("wrong_splits", "mismatched_collective", ("exchange",), layouts=THREE, hangs=False, blames=NO_RANK)
@also("unknown", "nothing that is left shows which rank has sent too much")
def _(point: InjectionPoint) -> None:
    """One rank counts its tokens wrongly, and sends an expert three more than it expects; gloo aborts that rank."""
    import torch

    program: Any = sys.modules["__main__"]
    arrive = [len(program.MINE)] * point.world
    leave = [len(track) for track in program.TRACKS]
    leave[point.rank - 1] += 3 * (point.rank == point.chosen)
    program.swap(torch.zeros(sum(leave), dtype=torch.float64), leave, arrive)


# The sum is made while the next step computes: only the barrier after two steps shows it.
@_nine("metrics_left_out", "missing_collective", ("backward",), at="collective", layouts=THREE, hangs=None)
@also("mismatched_collective", "its later calls in this group meet earlier ones of the others")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank does not take part in the asynchronous sum of the metrics of one step."""


@_six("one_forward_more", "mismatched_collective", ("forward",), layouts=THREE, hangs=None)
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """One rank alone runs a sharded layer once more, to print an example."""
    import torch

    with torch.no_grad():
        point.ward.tree.left(torch.ones(4, dtype=torch.float64))


@_nine("saves_on_signal", "mismatched_collective", ("forward",), layouts=THREE, hangs=None)
@also("missing_collective", _LEFT_OUT)
def _(point: InjectionPoint) -> None:
    """A signal that asks for a checkpoint reaches one rank only, whose handler enters a barrier."""
    import torch.distributed as dist

    signal.signal(signal.SIGUSR1, lambda *_: dist.barrier())
    signal.raise_signal(signal.SIGUSR1)


@_eight("asks_another_player", "mismatched_collective", ("exchange",), layouts=THREE)
@also("missing_collective", "it waits for a rank that sends it nothing, and not in what the others wait for")
def _(point: InjectionPoint) -> None:
    """One rank waits for the weights of a rank that has none to send."""
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(8, dtype=torch.float64), (point.rank + 1) % point.world)


# Healthy jobs


@_well("long_rating", "team", "3")
def _(point: InjectionPoint) -> None:
    """The thread that serves a neighbour needs 2.5 s for its answer."""
    time.sleep(2.5)


@_well("helper_fails", "checkpoint", "2+2")
def _(point: InjectionPoint) -> None:
    """A tool ends with a traceback and code 1, another one stays a zombie, and the rank continues."""
    point.ward.zombie = subprocess.Popen(["true"])
    subprocess.run([sys.executable, "-c", "raise ConnectionError('nothing to upload to')"])


@_well("short_snapshot", "exchange", "4")
def _(point: InjectionPoint) -> None:
    """A tool stops a rank for 1.5 s."""
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 1.5; kill -CONT {os.getpid()}"])


@_well("uneven_reads", "step", "3", at="data", blames=NO_RANK)
def _(point: InjectionPoint, path: str) -> None:
    """The threads that read need 0 s, 1.2 s and 2.4 s for a row."""
    time.sleep(1.2 * point.rank)


@_well("long_saves", "checkpoint", "2+2", at="storage", blames=NO_RANK)
def _(point: InjectionPoint, path: str) -> None:
    """All ranks need 3 s for their parts of a checkpoint, one of them 3.5 s."""
    time.sleep(3.5 if point.rank == point.chosen else 3)


@_well("long_step", "forward", "2", COUNTED)
def _(point: InjectionPoint) -> None:
    """Without a client, a rank computes for 3.5 s of a limit of 6 s."""
    _compute(3.5)
