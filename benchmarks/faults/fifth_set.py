"""The fifth held-out set: sums in a thread of their own (`program_7`), and earlier programs.

Its author had not read the rules, and checked each fault without a verdict in view.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import io
import multiprocessing
import os
import platform
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks.faults.corpus import COUNTED, FINISHED, NO_RANK, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, background

_MANY = ("4", "3", "2+2", "3")
_own = partial(fault, held_out=True, layouts=_MANY)
_two, _three, _four, _five, _six, _seven = (partial(_own, program=number) for number in range(2, 8))
_well = partial(healthy, held_out=True)
_well_4, _well_5, _well_6, _well_7 = (partial(_well, program=number) for number in range(4, 8))
_FORK = multiprocessing.get_context("fork")
_LIBC = ctypes.CDLL(None)
_LEFT_OUT = "it is in another call, and so not in the one in which the others wait"


class _Status(Exception):
    """As many exceptions of clients: it is pickled, and cannot be made again of its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def _fetch() -> NoReturn:
    raise _Status(429, "too many requests")


def _store() -> Any:
    """That of the job."""
    return distributed_c10d._get_default_store()


# In its own code


@_six("key_of_one", "user_code", ("validation", "collective"), at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank builds a vocabulary without an end; the others wait in the job's store for the key that it sets."""
    vocabulary: dict[int, int] = {}
    while point.mine:
        vocabulary[len(vocabulary) % 1000] = sum(vocabulary.values()) % 7
    _store().wait(["vocabulary"], timedelta(minutes=10))


@_five("marker_file", "user_code", ("validation",), at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank tokenises without an end; the others poll for the file that it writes afterwards."""
    text = "abc"
    while point.mine:
        text = text[1:] + text[0]
    while not (point.folder / "tokens.done").exists():
        time.sleep(0.05)


@_two("awaits_debugger", "user_code", ("step", "team"))
@also("network", "it accepts a connection that no process makes")
def _(point: InjectionPoint) -> None:
    """A call that waits for a debugger to connect was left in the code."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


@_six("watches_folder", "user_code", ("init", "step"), waits=True)
def _(point: InjectionPoint) -> None:
    """A rank reads the changes of a folder until a new file is there, and no process writes one."""
    (inbox := point.folder / "inbox").mkdir()
    watch = _LIBC.inotify_init()
    _LIBC.inotify_add_watch(watch, bytes(inbox), 0x100)  # IN_CREATE
    os.read(watch, 4096)


@_seven("paused_terminal", "user_code", ("step",))
def _(point: InjectionPoint) -> None:
    """A rank prints to a terminal in which a user has paused the output."""
    _, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    os.write(terminal, b"step 6\n")


@_seven("main_thread_leaves", "missing_collective", ("step",), variants=(("step", COUNTED),), held_out=False)
@also("early_exit", "its main thread has ended without an error, and the process stays for its other threads")
def _(point: InjectionPoint) -> None:
    """A library ends the main thread alone; the other threads of the rank run on."""
    _LIBC.syscall({"x86_64": 60}.get(platform.machine(), 93), 0)  # exit, not exit_group


@_five("watchdogs_raise", "user_code", ("collective", "validation"), at="joint", hangs=None)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank searches without an end; the others raise as NCCL's watchdog does."""
    while point.mine:
        sorted(range(1000), key=lambda number: -number)
    time.sleep(1.5)
    raise dist.DistBackendError(
        f"[Rank {point.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=811, "
        "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=1500) ran for 1500 milliseconds before timing out."
    )


# Locks, children, services


@_seven("lock_in_finaliser", "lock", ("backward", "exchange"))
def _(point: InjectionPoint) -> None:
    """A finaliser takes the lock that the code has in which the object ends."""
    guard = threading.Lock()

    class Slot:
        def __del__(self) -> None:
            with guard:
                pass

    with guard:
        Slot()


@_seven("sum_in_sum", "lock", ("team",), at="collective")
@also("missing_collective", "its sum is never made, and the others wait in it")
def _(point: InjectionPoint, tensor: Any) -> None:
    """The thread that makes the sums waits for a sum of its own queue."""
    point.ward.ferry.carry(tensor.clone(), "", 0).result()


@_six("reads_with_interpreter", "gil", ("forward", "step"))
@also("lock", "it waits for a thread of its own")
def _(point: InjectionPoint) -> None:
    """Native code keeps the interpreter lock and reads what a Python thread of the rank is to write."""
    reader, writer = os.pipe()
    background(lambda: (time.sleep(0.2), os.write(writer, b"x")))
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


@_five("polled_lock", "network", ("validation", "collective"), at="joint", layouts=("4", "3"))
@also("user_code", "it waits in the program's own code, in which it keeps the lock for which the others poll")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank locks a cache and downloads without an answer; the others try the lock again and again."""
    time.sleep(0.0 if point.mine else 0.5)
    with open(point.folder / "cache.lock", "w") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        if point.mine:
            ask(point.port)


@_three("unreadable_result", "child", ("forward", "validation"))
@also("lock", "a thread of the pool has died, and the main thread waits for it")
def _(point: InjectionPoint) -> None:
    """A process of a pool raises what cannot be unpickled, and the pool never gives a result."""
    _FORK.Pool(1).apply(_fetch)


@_six("tool_asks", "child", ("checkpoint",))
def _(point: InjectionPoint) -> None:
    """A tool asks for a password, and the rank, which has its input, waits for its end."""
    subprocess.Popen(["sh", "-c", "read answer"], stdin=subprocess.PIPE).wait()


@_seven("threads_after_fork", "child", ("step", "validation"))
@also("lock", "its child waits in a native lock for threads that a fork does not copy")
def _(point: InjectionPoint) -> None:
    """A rank forks after torch has used several threads, and the child computes with torch."""
    torch.set_num_threads(2)
    torch.ones(1 << 22).add_(1)
    if (pid := os.fork()) == 0:
        torch.ones(1 << 22).add_(1)
        os._exit(0)
    os.waitpid(pid, 0)


@_seven("refused_again", "network", ("forward", "init"), waits=True)
@also("user_code", "it sleeps between its attempts, in its own loop")
def _(point: InjectionPoint) -> None:
    """A service is gone, its port refuses connections, and the rank tries again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    while True:
        with suppress(OSError):
            socket.create_connection(address).close()
        time.sleep(0.2)


@_seven("key_of_none", "network", ("step", "team"), blames=NO_RANK)
@also("unknown", "nothing in the ranks shows which of them should set the key")
def _(point: InjectionPoint) -> None:
    """All ranks wait in the job's store for a key that none sets."""
    _store().get("curriculum")


# Data and checkpoints


@_seven("reader_stopped", "data_loading", ("step",), at="data", variants=(("step", COUNTED),), held_out=False)
@also("child", "the process that reads is the rank's own")
def _(point: InjectionPoint, path: str) -> None:
    """The process that reads ahead is stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


@_seven("saves_again", "checkpoint_io", ("checkpoint",), at="storage")
@also("user_code", "it sleeps between its attempts, in its own loop")
def _(point: InjectionPoint, path: str) -> str:
    """A thread tries again and again to write a checkpoint, to a folder that is gone."""
    while True:
        with suppress(OSError):
            (point.folder / "unmounted" / "part").write_bytes(b"")
        time.sleep(0.25)


@_six("short_checkpoint", "exception", ("init",), hangs=False)
@also("checkpoint_io", "the read of a checkpoint fails")
def _(point: InjectionPoint) -> None:
    """The file of one rank's checkpoint is shorter than it was."""
    torch.save(torch.ones(99), whole := io.BytesIO())
    torch.load(io.BytesIO(whole.getvalue()[:-300]))


# Ends


@_seven("counts_to_256", "early_exit", ("step", "forward"), hangs=None)
def _(point: InjectionPoint) -> NoReturn:
    """A rank leaves with the number of its errors, 256, of which the kernel keeps eight bits."""
    sys.exit(256)


@_six("code_of_tool", "exit", ("step", "validation"), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A tool is killed, and its rank leaves with the tool's code."""
    sys.exit(subprocess.run(["sh", "-c", "kill -9 $$"]).returncode)


@_seven("warning_signal", "signal", ("team", "step"), hangs=False)
def _(point: InjectionPoint) -> None:
    """A scheduler's warning, SIGUSR1, reaches one rank only, and the rank has no handler for it."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(60)


@_four("no_text", "exception", ("backward",), hangs=False)
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises an exception whose text cannot be made."""

    class Mismatch(ValueError):
        def __str__(self) -> str:
            return f"{self.args[1]}"

    raise Mismatch("shape")


@_two("output_in_file", "exception", ("team", "forward"), hangs=False)
@also("exit", "its standard error has nothing, as the program writes its errors to a file")
def _(point: InjectionPoint) -> NoReturn:
    """A rank has a file as its standard error, and raises."""
    sys.stderr = open(point.folder / "errors.txt", "w")  # noqa: SIM115
    raise LookupError("no learning rate for step 6")


@_five("wrong_interface", "exception", ("init",), hangs=False)
def _(point: InjectionPoint) -> None:
    """One rank is to use a network interface that its machine does not have."""
    os.environ["GLOO_SOCKET_IFNAME"] = "ib7"


# Collectives


@_six("no_tokens", "missing_collective", ("validation",), at="joint", layouts=THREE, hangs=None)
@also("mismatched_collective", _LEFT_OUT)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank has no tokens for the experts of the others, and leaves out the exchange of tokens."""
    both = [torch.zeros(4 * point.world) for _ in range(2)]
    if not point.mine:
        torch.distributed.all_to_all_single(*both)


@_seven("ring_reversed", "mismatched_collective", ("exchange",), at="send", layouts=THREE, hangs=None)
@also("missing_collective", "it does not send what its neighbour waits for")
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """One rank exchanges with its neighbours in the other direction."""
    before = (2 * point.rank - peer) % point.world
    both = [dist.P2POp(dist.isend, tensor, before), dist.P2POp(dist.irecv, tensor.clone(), peer)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


@_two("meets_again", "missing_collective", ("team",), layouts=THREE, hangs=None)
@also("startup", "it waits at a rendezvous of its own for the others")
def _(point: InjectionPoint) -> None:
    """After an error of its own a rank leaves its process group and initialises it again."""
    store = dist.PrefixStore("again", _store())
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=point.rank, world_size=point.world)


@_four("native_exit", "shutdown", ("shutdown",), options=FINISHED, held_out=False)
def _(point: InjectionPoint) -> None:
    """A rank is done, and what a native library does at the exit of the process does not end."""
    _LIBC.calloc.restype = ctypes.c_void_p  # no object of Python, which would be gone by then
    mutex = ctypes.c_void_p(_LIBC.calloc(1, 64))
    _LIBC.pthread_mutex_lock(mutex)
    _LIBC.__cxa_atexit(ctypes.cast(_LIBC.pthread_mutex_lock, ctypes.c_void_p), mutex, None)


@_well_7("evaluates_alone", "validation", "3")
def _(point: InjectionPoint) -> None:
    """One rank evaluates for 2 s, in Python and in torch, and the others wait."""
    end = time.monotonic() + 2
    while time.monotonic() < end:
        torch.ones(64, 64).matmul(torch.ones(64, 64)).sum().item()


@_well_7("slow_disk", "checkpoint", "4", at="storage", blames=NO_RANK)
def _(point: InjectionPoint, path: str) -> None:
    """The storage takes 1 to 2.5 s for the part of a rank."""
    time.sleep(1 + 0.5 * point.rank)


@_well_5("uneven_texts", "forward", "3", blames=NO_RANK)
def _(point: InjectionPoint) -> None:
    """Ranks have texts of different lengths: a step takes 0 s, 0.8 s and 1.6 s."""
    time.sleep(0.8 * point.rank)


@_well_6("compiles", "forward", "2+2", blames=NO_RANK)
def _(point: InjectionPoint) -> None:
    """All ranks compile for 3 s, with a child that computes and one after it that sleeps."""
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    subprocess.run(["sleep", "2.5"], check=True)


@_well_4("collects", "step", "3", COUNTED)
def _(point: InjectionPoint) -> None:
    """The garbage collector stops a rank three times for about half a second."""
    kept = [[number] for number in range(1_500_000)]
    for _ in range(3):
        gc.collect()
    kept.clear()


@_well_7("roles", "validation", "4", at="joint", blames=NO_RANK)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """Ranks do different work for up to 2 s: one computes, others wait for a child, a lock, a service."""
    full = threading.Semaphore(0)
    works = [
        lambda: sum(range(20_000_000)),
        lambda: subprocess.run(["sleep", "2"]),
        lambda: full.acquire(timeout=2),
        lambda: socket.create_connection(("127.0.0.1", point.port), timeout=2).recv(1),
    ]
    with suppress(OSError):
        works[point.rank]()
