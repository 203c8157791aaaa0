"""Unseen faults: held out like those of `held_out`, and written later, to score once the rules that were there.

Their labels were written before anything was run, by an author without the rules at hand. They run in both programs.
Once a rule has been changed for one of these faults, it has `held_out=False`.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import http.client
import itertools
import logging
import logging.handlers
import mmap
import multiprocessing
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

from benchmarks.faults import corpus
from benchmarks.faults.corpus import READS, THREE, also
from benchmarks.faults.injection import InjectionPoint, no_core

_LAYOUTS = ("4", "3", "2+2", "2", "3", "1+1")
_MANY = ("3", "4", "2+2")
_first = partial(corpus.fault, held_out=True, layouts=_LAYOUTS)
_second = partial(corpus.fault, held_out=True, program=2, layouts=_LAYOUTS)
_healthy = partial(corpus.healthy, held_out=True, program=2)


# Hangs in a rank's own code


@_second("custom_function", "user_code", ("backward", "team"))
def _(point: InjectionPoint) -> None:
    """The backward of a custom autograd function polls a device that is never ready."""
    import torch

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            while not (point.folder / "device").exists():
                time.sleep(0.01)
            return gradients[0] * 2

    factor = torch.ones(1, requires_grad=True)
    Scale.apply(factor).sum().backward()  # type: ignore[no-untyped-call]


@_second("endless_iterator", "gil", ("forward", "backward"))
@also("user_code", "it computes in the program's own code, and holds the interpreter lock meanwhile")
def _(point: InjectionPoint) -> None:
    """A built-in function consumes an iterator that has no end, and Python changes no thread meanwhile."""
    print(-1 in itertools.count())


@_first("polled_collective", "user_code", ("collective", "validation"), at="joint", layouts=_MANY)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank sleeps; the others poll, in Python, whether their asynchronous collective is complete."""
    import torch
    import torch.distributed as dist

    if point.mine:
        time.sleep(3600)
    work = dist.all_reduce(torch.zeros(8), async_op=True)
    while work is not None and not work.is_completed():
        time.sleep(0.01)


@_first(
    "cache_under_lock",
    "user_code",
    ("collective", "checkpoint"),
    at="joint",
    layouts=("4", "3", "2"),
    held_out=False,
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank computes a cache for ever and has locked its file; the others wait for this lock."""
    if not point.mine:
        time.sleep(0.5)
    with open(point.folder / "cache", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        number = 1
        while point.mine:
            number = number * 48271 % 2147483647


@_first("monitored_barrier", "user_code", ("collective", "checkpoint"), hangs=None, at="joint", layouts=_MANY)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank sleeps; a monitored barrier of the others passes its limit of 1.5 s and raises."""
    import torch.distributed as dist

    if point.mine:
        time.sleep(3600)
    dist.monitored_barrier(timeout=timedelta(seconds=1.5), wait_all_ranks=True)


# Locks and threads of its own process


@_second("pool_of_itself", "lock", ("forward",))
def _(point: InjectionPoint) -> None:
    """The task of a pool of one thread waits for another task of this pool."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


@_second("full_queue", "lock", ("step", "team"))
def _(point: InjectionPoint) -> None:
    """A rank puts its metrics into a bounded queue, and the thread that takes them out has died."""
    metrics: queue.Queue[float] = queue.Queue(4)
    writer = threading.Thread(target=metrics.get, daemon=True)
    writer.start()
    while True:
        metrics.put(1.0)


@_second("lost_wakeup", "lock", ("exchange",))
def _(point: InjectionPoint) -> None:
    """A condition is notified before the rank waits for it, and never again."""
    condition = threading.Condition()
    with condition:
        condition.notify_all()
    with condition:
        condition.wait()


@_second("lock_in_handler", "lock", ("step", "backward"))
def _(point: InjectionPoint) -> None:
    """A signal's handler takes the lock that the code which it interrupted has."""
    guard = threading.Lock()

    def on_signal(number: int, frame: Any) -> None:
        with guard:
            logging.warning("flushed")

    signal.signal(signal.SIGALRM, on_signal)
    with guard:
        signal.raise_signal(signal.SIGALRM)
        time.sleep(0.1)


@_second("blocked_loop", "lock", ("forward", "checkpoint"))
@also("user_code", "a callback of the program sleeps on the event loop's thread, for which the rank waits")
def _(point: InjectionPoint) -> None:
    """A rank waits for a coroutine, and a callback blocks the event loop that is to run it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    loop.call_soon_threadsafe(time.sleep, 3600)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()


# Services, storage, data, children


@_second("busy_service", "network", ("step", "checkpoint"))
@also("user_code", "most of the time the rank sleeps between two attempts, in its own loop")
def _(point: InjectionPoint) -> None:
    """A web server answers 503, and the rank tries again, each time after a longer pause."""
    port = int((point.folder / "busy").read_text())  # served by `fixtures`
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pause = 0.1
    while True:
        try:
            opener.open(f"http://127.0.0.1:{port}/runs")
        except urllib.error.HTTPError:
            time.sleep(pause)
            pause = min(60.0, 2 * pause)


@_second("log_collector", "network", ("team",))
def _(point: InjectionPoint) -> None:
    """A rank logs over TCP to a collector that reads nothing."""
    logger = logging.getLogger("collected")
    logger.propagate = False
    address = ("127.0.0.1", point.port)
    logger.addHandler(logging.handlers.SysLogHandler(address, socktype=socket.SOCK_STREAM))
    while True:
        logger.warning("x" * 100_000)


@_second("tls_handshake", "network", ("init", "checkpoint"), waits=True)
def _(point: InjectionPoint) -> None:
    """A server accepts the connection and does not take part in the TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_connection(("127.0.0.1", point.port)) as connection:
        context.wrap_socket(connection, server_hostname="localhost")


@_first("object_store", "checkpoint_io", ("checkpoint",), at="storage")
@also("network", "the checkpoint's storage is another machine's service, which reads nothing")
def _(point: InjectionPoint, path: str) -> str:
    """A rank saves its part into an object store, which does not take it."""
    client = http.client.HTTPConnection("127.0.0.1", point.port)
    client.request("PUT", f"/{os.path.basename(path)}", body=bytes(64 << 20))
    return ""


@_first("own_reader_process", "data_loading", READS, at="data")
@also("child", "it waits for the process that it started to read, and that one has ended")
def _(point: InjectionPoint, path: str) -> None:
    """The program's own reading process has ended with code 1, and the rank waits for its queue."""
    context = multiprocessing.get_context("fork")
    samples = context.Queue()
    context.Process(target=os._exit, args=(1,), daemon=True).start()
    samples.get()


@_second("unread_output", "child", ("step", "exchange"))
def _(point: InjectionPoint) -> None:
    """A rank waits for a tool to end, which cannot as its output is a pipe that the rank does not read."""
    subprocess.Popen(["seq", "1000000"], stdout=subprocess.PIPE).wait()


# Ranks that disagree about what they communicate


@_first(
    "gather_to_itself",
    "mismatched_collective",
    ("collective", "validation"),
    at="joint",
    layouts=THREE,
    held_out=False,
)
@also("missing_collective", "it waits for what nobody sends to it, and never comes to the next collective")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank takes itself for the one to which all send, and waits; the others send to rank 0."""
    import torch
    import torch.distributed as dist

    root = point.rank if point.mine else 0
    parts = [torch.zeros(4) for _ in range(point.world)] if root == point.rank else None
    dist.gather(torch.zeros(4), parts, dst=root)


@_second("group_of_one", "missing_collective", ("exchange", "team"), layouts=THREE)
@also("mismatched_collective", "making a group is a collective, and the other ranks are in another one")
def _(point: InjectionPoint) -> None:
    """One rank makes a process group of all ranks, and no other rank does."""
    import torch.distributed as dist

    dist.new_group()


# Ends


@_first("worker_exits", "exception", ("step",), hangs=False, at="data", workers=1)
@also("data_loading", "the loader's exception ended the rank, and says itself that its worker ended")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """A library ends a worker of the data loader with exit code 1."""
    os._exit(1)


@_second("exit_with_message", "exit", ("init", "step"), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A rank refuses its configuration with a message, and leaves."""
    sys.exit("config: the tokenizer has 50257 entries, the model 50304")


@_second("own_hook", "exception", ("forward", "team"), hangs=False)
@also("exit", "the program's own hook ends the process, with an exit code of its choice")
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises; the program's own sys.excepthook logs one line of JSON and leaves with code 70."""

    def on_exception(kind: Any, error: BaseException, traceback: Any) -> None:
        print(f'{{"level": "fatal", "error": "{kind.__name__}: {error}"}}', file=sys.stderr, flush=True)
        os._exit(70)

    sys.excepthook = on_exception
    raise LookupError("no schedule for this step")


@_first("cleans_up_first", "exception", ("collective", "validation"), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises, leaves its process group, and takes 1.5 s to clean up; meanwhile its peers fail."""
    import torch.distributed as dist

    try:
        raise FloatingPointError("the loss is not finite")
    finally:
        dist.destroy_process_group()
        time.sleep(1.5)


@_first("forked_away", "early_exit", ("step", "collective"))
def _(point: InjectionPoint) -> None:
    """A library forks and ends the parent with code 0, as daemons do; the child has lost gloo's threads."""
    if os.fork():
        os._exit(0)


@_second("bad_free", "signal", ("checkpoint",), hangs=False)
def _(point: InjectionPoint) -> None:
    """Native code frees what it did not allocate, and libc aborts."""
    no_core()
    block = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).free(ctypes.c_void_p(ctypes.addressof(block) + 32 & ~15))


@_second("illegal_instruction", "signal", ("forward", "backward"), hangs=False)
def _(point: InjectionPoint) -> None:
    """A library was built for another processor, which knows more instructions."""
    no_core()
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\x0b" if os.uname().machine == "x86_64" else bytes(4))  # undefined on both
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


@_second("killed_by_pipe", "signal", ("exchange",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A library has set SIGPIPE to its default, and the rank writes into a pipe that nobody reads."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"loss 1.0\n")


# Healthy jobs


@_healthy("compiles_at_start", "init", "2+2")
def _(point: InjectionPoint) -> None:
    """One rank waits 4 s for a compiler, and the others for it."""
    subprocess.run(["sleep", "4"], check=True)


@_healthy("gil_for_a_while", "backward", "3")
def _(point: InjectionPoint) -> None:
    """Native code keeps the interpreter lock for 2.5 s."""
    ctypes.PyDLL(None).usleep(2_500_000)
