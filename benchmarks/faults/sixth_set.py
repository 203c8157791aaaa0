"""The sixth held-out set: actors and a learner (`program_8`), and earlier programs.

Its author had not read the rules, and checked each fault without a verdict in view.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from benchmarks.faults.corpus import COUNTED, NO_RANK, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, no_core

_own = partial(fault, held_out=True, layouts=("3", "4", "2+2", "4"))
_three, _five, _seven, _eight = (partial(_own, program=number) for number in (3, 5, 7, 8))
_well = partial(healthy, held_out=True, program=8)
_FORK = multiprocessing.get_context("fork")
_LIBC = ctypes.CDLL(None)
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # a filter of packets: keep no byte
_ATTACH, _DETACH = 26, 27


class _Resolver(ctypes.Structure):
    """The beginning of glibc's `struct __res_state`."""

    _fields_ = (
        ("wait", ctypes.c_int),
        ("attempts", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("count", ctypes.c_int),
        ("first", ctypes.c_char * 16),
    )


def _links() -> Iterator[socket.socket]:
    """The connections between ranks: all of this process but those to the store."""
    store = int(os.environ["MASTER_PORT"])
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                link = socket.socket(fileno=os.dup(number))
                if link.family != socket.AF_UNIX and link.getpeername()[1] != store:
                    yield link


def _unplug() -> list[socket.socket]:
    """Drop all that other ranks send to this one, as a broken network does."""
    links = list(_links())
    for link in links:
        link.setsockopt(socket.SOL_SOCKET, _ATTACH, struct.pack("HL", 1, ctypes.addressof(_DROP)))
    return links


def _start_into(fifo: os.PathLike[str]) -> int:
    """Start a tool with a named pipe as its output; libc returns once the tool has opened it."""
    output = (os.POSIX_SPAWN_OPEN, 1, os.fspath(fifo), os.O_WRONLY, 0)
    return os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[output])


# Services and the network


# It is in a lookup of a name, and the name server is what does not answer.
@_eight("name_lookup", "network", ("import", "step"), waits=True)
def _(point: InjectionPoint) -> None:
    """libc looks up the name of a tracker, and the name server does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        _LIBC.__res_init()
        _LIBC.__res_state.restype = ctypes.POINTER(_Resolver)
        resolver = _LIBC.__res_state().contents
        resolver.wait, resolver.attempts, resolver.count = 300, 1, 1
        address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(server.getsockname()[1]), b"\x7f\0\0\1")
        ctypes.memmove(ctypes.addressof(resolver) + _Resolver.first.offset, address, len(address))
        socket.getaddrinfo("tracker.example.org", 443)


# The service is on the machine, and it is still a service.
@_seven("daemon_hung", "network", ("forward",))
def _(point: InjectionPoint) -> None:
    """A rank connects to a daemon of its machine that accepts no more connections."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(path := str(point.folder / "daemon"))
        daemon.listen(0)
        clients = []
        while True:
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].connect(path)


# All are in calls that fit each other; what is broken are the connections of this rank, and only they.
@_eight("dead_links", "network", ("team", "validation"), layouts=("2+2", "4"))
def _(point: InjectionPoint) -> None:
    """The network loses all packets for one rank, and no connection is closed."""
    _unplug()


# The main thread waits for the lock, whose owner waits for a client of the network: both are true.
@_eight("scraper_stuck", "lock", ("forward", "checkpoint"))
@also("network", "the thread that has the lock sends to a client that does not read")
def _(point: InjectionPoint) -> None:
    """A client asks for the metrics and does not read them; their lock is taken meanwhile."""
    point.ward.page = bytes(64 << 20)
    point.ward.scraper = socket.create_connection(point.ward.place)
    point.ward.scraper.sendall(b"GET / HTTP/1.0\r\n\r\n")
    time.sleep(0.5)


# It raised, which is the cause; what keeps it from its end is the tracker's service.
@_eight("report_of_crash", "exception", ("forward", "checkpoint"))
@also("network", "the tracker's sys.excepthook waits for its service, and the rank does not end")
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises, and the hook of a tracker sends the exception to a service that does not answer."""
    sys.excepthook = lambda *error: (ask(point.port), sys.__excepthook__(*error))
    raise ArithmeticError("the advantages of step 6 are all equal")


# Locks and its own code


# No rank is to blame alone: each of two has what the other wants.
@_eight("two_files", "lock", ("step", "validation"), layouts=("2", "4"), blames=NO_RANK)
def _(point: InjectionPoint) -> None:
    """Ranks lock two files, the even ones in another order than the odd ones."""
    names = ("index", "vocabulary")[:: -1 if point.rank % 2 else 1]
    for number in [os.open(point.folder / f"{name}.lock", os.O_CREAT) for name in names]:
        fcntl.flock(number, fcntl.LOCK_EX)
        time.sleep(1)


# The comparison is in C and keeps the interpreter lock; it is the program that asked for it.
@_seven("compares_configs", "gil", ("forward",))
@also("user_code", "it is the program's own comparison that has no end")
def _(point: InjectionPoint) -> None:
    """A rank compares two configurations whose parts occur again and again."""
    left: list[Any] = []
    right: list[Any] = []
    for _ in range(64):
        left, right = [left, left], [right, right]
    point.ward.same = left == right


# The loop around the tool is what does not end; each tool ends at once.
@_seven("tool_fails_again", "user_code", ("validation",), variants=(("step", COUNTED),))
@also("child", "it starts a tool again and again, and waits for one that succeeds")
def _(point: InjectionPoint) -> None:
    """A rank runs a tool until it succeeds, and it always fails."""
    while subprocess.run(["sh", "-c", "exit 3"]).returncode:
        time.sleep(0.2)


# It computes, in a loop that only the dead process could end.
@_eight("shared_flag", "user_code", ("team",))
@also("child", "the process that is to set the flag is its own, and was killed")
def _(point: InjectionPoint) -> None:
    """A rank spins until a helper sets a number in shared memory, and the helper was killed."""
    import torch

    flag = torch.zeros(1).share_memory_()
    _FORK.Process(target=signal.raise_signal, args=(signal.SIGKILL,), daemon=True).start()
    while not flag.item():
        pass


# The child has ended; the rank's own loop does not notice it.
@_seven("zombie_polled", "child", ("step", "team"))
@also("user_code", "it polls in its own code, and has to call wait()")
def _(point: InjectionPoint) -> None:
    """A rank polls until the number of its child is free, which it is after a wait() only."""
    child = subprocess.Popen(["true"])
    while os.path.exists(f"/proc/{child.pid}"):
        time.sleep(0.05)


# The child waits for a lock that its own parent has.
@_five("tool_wants_lock", "child", ("init", "checkpoint"), waits=True)
@also("lock", "its child waits for the lock of a file, which the rank itself has locked")
def _(point: InjectionPoint) -> None:
    """A rank has locked a cache, and runs a tool that locks it, too."""
    take = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
    with open(point.folder / "cache.lock", "w") as cache:
        fcntl.flock(cache, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-c", take, cache.name])


# Popen waits for its child, which has not yet become the tool.
@_three("stuck_before_exec", "child", ("forward",))
def _(point: InjectionPoint) -> None:
    """A forked process does not come to its exec, and the rank waits for that."""
    subprocess.Popen(["true"], preexec_fn=lambda: time.sleep(300))


# vfork waits in state D, and a person sees that first; what it waits for is the child.
@_eight("spawn_blocks", "uninterruptible", ("backward", "step"), held_out=False)
@also("child", "what it waits for in the kernel is its child")
def _(point: InjectionPoint) -> None:
    """A tool is started with an output that cannot be opened, and libc waits for it in the kernel."""
    os.mkfifo(fifo := point.folder / "tool.log")
    _start_into(fifo)


# The episodes are the data of the step.
@_eight("episode_without_end", "data_loading", ("step",), at="data")
@also("user_code", "the environment computes in the rank's own thread")
def _(point: InjectionPoint, path: str) -> None:
    """An environment never ends its episode, in a thread of the event loop that collects them."""
    while path:
        path = path[1:] + path[0]


# The main thread waits for the part of a checkpoint; the process that writes it is dead.
@_eight("writer_dead", "checkpoint_io", ("checkpoint",), at="storage", held_out=False)
@also("child", "the process that saves is its own, and was killed")
def _(point: InjectionPoint, path: str) -> None:
    """The process that writes checkpoints is killed, and the rank waits for its answer, which never ends."""
    os.kill(os.getpid(), signal.SIGKILL)


# The rank raises; its helper has ended well, as was planned.
@_eight("tensor_of_the_dead", "exception", ("forward",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A rank gets a tensor from a helper that has ended, and its memory is gone with it."""
    import torch
    import torch.multiprocessing

    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    helper = _FORK.Process(target=lambda: queue.put(torch.ones(9)))
    helper.start()
    helper.join()
    queue.get()


# Its process ends with 0, and its training does not.
@_eight("becomes_tool", "early_exit", ("step",), hangs=None)
def _(point: InjectionPoint) -> NoReturn:
    """A library replaces the process of a rank by a tool, which ends well."""
    os.execvp("true", ["true"])


# It has trained to the end, and then a signal ends it.
@_eight("crash_at_exit", "signal", ("shutdown",), hangs=False)
def _(point: InjectionPoint) -> None:
    """A rank is done, and a library reads an invalid address at its exit."""
    no_core()
    atexit.register(ctypes.string_at, 0)


# All but one raise, and the one that does not is the cause: its code is another one.
@_eight("foreign_class", "exception", ("validation",), at="joint", layouts=THREE, hangs=False)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank has newer code: what it gathers is of a module that the others do not have."""
    import torch.distributed as dist

    given: Any = None
    if point.mine:
        module = sys.modules["advantages"] = ModuleType("advantages")
        module.Return = type("Return", (), {"__module__": "advantages"})  # type: ignore[attr-defined]
        given = module.Return()
    dist.all_gather_object([None] * point.world, given, group=group)


# Collectives


# It receives, and the others reduce.
@_eight("waits_for_any", "mismatched_collective", ("collective", "validation"), at="joint", layouts=THREE)
@also("missing_collective", "it waits for a message, and so is not in the collective of the others")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank waits for a message from any other one, and none sends it."""
    import torch.distributed as dist

    if point.mine:
        dist.recv(tensor.clone())


# A group is made by all, as a collective is; only the order of this rank is another one.
@_eight(
    "groups_reordered",
    "mismatched_collective",
    ("validation",),
    at="joint",
    layouts=("4",),
    hangs=None,
    held_out=False,
)
@also("startup", "it waits to meet ranks that make another group")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """All ranks make the same two groups, one of them in the other order."""
    import torch.distributed as dist

    parts = [[*range(point.world - 1)], [*range(1, point.world)]]
    for part in parts[:: -1 if point.mine else 1]:
        dist.new_group(part)


# The stacks show two different calls; a person also finds the exception, which is what to repair.
@_eight("barrier_in_finally", "mismatched_collective", ("forward",), layouts=THREE, hangs=None)
@also("exception", "an exception has brought it there, which will end it after the barrier")
def _(point: InjectionPoint) -> None:
    """A rank raises, and on its way out it comes to a barrier that no other rank has reached."""
    import torch.distributed as dist

    try:
        raise KeyError("episode 6")
    finally:
        dist.barrier()


@_well("long_episode", "step", "3", at="data")
def _(point: InjectionPoint, path: str) -> None:
    """An episode of one rank takes 2.5 s."""
    time.sleep(2.5)


@_well("links_pause", "team", "2+2")
def _(point: InjectionPoint) -> None:
    """The network loses all packets for one rank, for 0.9 s."""
    links = _unplug()

    def plug() -> None:
        for link in links:
            link.setsockopt(socket.SOL_SOCKET, _DETACH, 0)

    threading.Timer(0.9, plug).start()


@_well("odd_background", "forward", "4")
def _(point: InjectionPoint) -> None:
    """A rank has a zombie, a child that sleeps, a thread that waits forever, and takes 2 s for a step."""
    point.ward.children = [subprocess.Popen(["true"]), subprocess.Popen(["sleep", "60"])]
    atexit.register(point.ward.children[1].kill)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    time.sleep(2)


@_well("spawn_waits", "backward", "3")
def _(point: InjectionPoint) -> None:
    """The output of a tool is opened after 1.5 s, and libc waits so long for the tool in the kernel."""
    os.mkfifo(fifo := point.folder / "tool.log")
    reader = subprocess.Popen(["sh", "-c", 'sleep 1.5; exec cat "$0"', os.fspath(fifo)])
    os.waitpid(_start_into(fifo), 0)
    reader.wait()
