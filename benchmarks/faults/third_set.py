"""The third held-out set, in programs of its own: tensor and data groups (`program_3`), a 1F1B pipeline (`program_4`).

Its author had not read the rules. `make faults ARGS='-o third_set'` runs these only. What a kind of fault does and who
is to blame is decided as everywhere in the corpus, before any rule is run.
"""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from benchmarks.faults.corpus import COUNTED, MANY, NO_RANK, THREE, also, fault, healthy
from benchmarks.faults.injection import InjectionPoint, ask, background

_third = partial(fault, held_out=True, program=3, layouts=("4", "2", "2+2", "3"))
_fourth = partial(fault, held_out=True, program=4, layouts=("3", "2+2", "4", "2"))
_ends_3, _ends_4 = partial(_third, hangs=False), partial(_fourth, hangs=False)
_odd_3, _odd_4 = partial(_third, hangs=None, layouts=THREE), partial(_fourth, hangs=None, layouts=THREE)
_well_3, _well_4 = partial(healthy, held_out=True, program=3), partial(healthy, held_out=True, program=4)
_OTHER = "the odd rank is in another call, and so not in the one in which the others wait"

# In its own code


@_third("eigenvalues", "user_code", ("forward", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """An operator of torch gets a matrix for which it needs many minutes."""
    torch.linalg.eigvals(torch.rand(6000, 6000))


@_fourth("gc_storm", "user_code", ("step",))
@also("gil", "each collection keeps the interpreter lock for most of a second")
def _(point: InjectionPoint) -> None:
    """A cache has a million objects, and the rank collects garbage after each look into it."""
    kept: list[Any] = [[number] for number in range(1_000_000)]
    while kept:
        gc.collect()


@_fourth("awaits_signal", "user_code", ("team",))
def _(point: InjectionPoint) -> None:
    """A rank waits for a signal that another program should send."""
    signal.sigwait({signal.SIGWINCH})


@_fourth("joins_with_pauses", "user_code", ("validation",))
@also("lock", "the main thread waits for another one, a tenth of a second at a time")
def _(point: InjectionPoint) -> None:
    """A thread evaluates, in a Python loop that never ends, and the main thread asks again and again for its end."""
    endless = iter(int, 1)
    evaluation = background(lambda: sum(1 for _ in endless))
    while evaluation.is_alive():
        evaluation.join(0.1)


@_third("log_fifo", "user_code", ("team",))
def _(point: InjectionPoint) -> None:
    """A rank opens its log, a named pipe from which no process reads."""
    os.mkfifo(path := str(point.folder / f"events-{point.rank}"))
    logging.getLogger("events").addHandler(logging.FileHandler(path))


# For another thread


@_third("hook_into_dead_thread", "lock", ("backward",), at="hook")
def _(point: InjectionPoint) -> None:
    """A gradient's hook waits for a thread that offloads it, which has died with an exception."""
    gone, offloaded = threading.Event(), threading.Event()

    def offload() -> None:
        gone.wait()
        raise RuntimeError("pinned buffer has 0 bytes left")

    background(offload)
    gone.set()
    offloaded.wait()


@_third("lock_of_loop", "lock", ("step", "checkpoint"))
@also("user_code", "the thread that has the lock computes in the program's own code")
def _(point: InjectionPoint) -> None:
    """A thread has a lock and computes without an end in Python; the main thread waits for the lock."""
    guard, taken = threading.RLock(), threading.Event()

    def rebuild() -> None:
        with guard:
            taken.set()
            while True:
                sorted(range(1000), reverse=True)

    background(rebuild)
    taken.wait()
    with guard:
        pass


@_fourth("semaphore_leak", "lock", ("exchange",))
def _(point: InjectionPoint) -> None:
    """Two failed requests did not give back their places, and a third one waits for a place."""
    places = threading.BoundedSemaphore(2)
    for _ in range(3):
        with suppress(OSError):
            places.acquire()
            raise OSError("upload failed")


# For another process


@_third("manager_stopped", "child", ("step",), held_out=False)
@also("network", "the rank reads from a socket, at whose other end its child is")
def _(point: InjectionPoint) -> None:
    """A rank asks for a value of a shared dictionary, and the process that has it is stopped."""
    manager = multiprocessing.get_context("fork").Manager()
    shared = manager.dict({"epoch": 1})
    server = multiprocessing.active_children()
    for process in server:
        if "Manager" in process.name and process.pid is not None:
            os.kill(process.pid, signal.SIGSTOP)
    print(shared["epoch"])


@_third("worker_leaves", "data_loading", ("step",), at="data", held_out=False)
@also("child", "the process for which the rank waits has ended, with code 0")
def _(point: InjectionPoint, path: str) -> NoReturn:
    """A library ends a worker of the data loader with exit code 0."""
    os._exit(0)


@_ends_3("saver_killed", "exception", ("checkpoint",), at="storage")
@also("child", "the exception says that the process at the other end of its pipe is gone")
def _(point: InjectionPoint, path: str) -> None:
    """The process that writes checkpoints is killed, and the rank raises when it asks for the result."""
    os.kill(os.getpid(), signal.SIGKILL)


@_third("saver_stopped", "child", ("checkpoint",), at="storage", held_out=False)
@also("checkpoint_io", "the rank waits for its checkpoint, and the process that writes it is stopped")
def _(point: InjectionPoint, path: str) -> None:
    """The process that writes checkpoints is stopped, and the rank waits for its answer two steps later."""
    os.kill(os.getpid(), signal.SIGSTOP)


@_fourth("compressor_stuck", "checkpoint_io", ("checkpoint",), at="storage", held_out=False)
@also("child", "the checkpoint goes through a child, which does not read")
def _(point: InjectionPoint, path: str) -> None:
    """A thread writes the checkpoint into a compressor that does not read; the rank waits for the thread."""
    compressor = subprocess.Popen(["sleep", "3600"], stdin=subprocess.PIPE)
    assert compressor.stdin is not None
    compressor.stdin.write(bytes(1 << 20))


@_third("lists_dead_mount", "uninterruptible", ("checkpoint",), needs=("fuse",))
@also("checkpoint_io", "it looks for old checkpoints on a filesystem that does not answer")
def _(point: InjectionPoint) -> None:
    """A rank lists old checkpoints on a filesystem that does not answer."""
    os.listdir(point.folder / "mounted")


# For a service


@_third("udp", "network", ("step", "checkpoint"))
def _(point: InjectionPoint) -> None:
    """A rank asks a name service by UDP, and the answer is lost."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("127.0.0.1", 0))
        asked.sendto(b"where is shard 17?", ("127.0.0.1", point.port))
        asked.recvfrom(512)


@_fourth("polls_service", "network", ("init", "forward"), waits=True)
@also("user_code", "the rank asks again and again in its own loop")
def _(point: InjectionPoint) -> None:
    """A rank waits for a service's answer, a fifth of a second at a time, and writes a line each time."""
    with socket.create_connection(("127.0.0.1", point.port)) as connection:
        connection.sendall(b"GET /lease\n")
        while not select.select([connection], [], [], 0.2)[0]:
            print("lease: no answer yet", flush=True)


@_third("side_channel", "user_code", ("collective",), at="joint", layouts=MANY, held_out=False)
@also("network", "its neighbour waits at a connection, at whose other end this rank does not answer")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank serves embeddings in a thread, which sleeps; its neighbour waits for them, all others in a collective."""
    note = point.folder / "served"
    if point.mine:
        server = socket.create_server(("127.0.0.1", 0))
        note.with_suffix(".new").write_text(f"{point.rank} {server.getsockname()[1]}")
        note.with_suffix(".new").replace(note)

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(64)
                time.sleep(3600)

        background(serve)
        return
    while not note.exists():
        time.sleep(0.05)
    rank, port = map(int, note.read_text().split())
    if point.rank == (rank + 1) % point.world:
        ask(port)


# In what ranks say to each other


@_odd_3("wrong_group", "mismatched_collective", ("team",), at="collective", layouts=("4", "2+2"), hangs=True)
@also("missing_collective", _OTHER)
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank sums its gradient over its tensor group instead of its data group."""
    dist.all_reduce(tensor, group=point.ward.tensor_group)


@_odd_4("own_root", "mismatched_collective", ("validation",), at="joint")
@also("missing_collective", _OTHER)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank takes another one than rank 0 for the one that broadcasts an object."""
    dist.broadcast_object_list([{"best": 1}], src=(point.rank or 1) if point.mine else 0)


@_fourth("pairs_send_first", "mismatched_collective", ("team",), blames=NO_RANK, layouts=("4", "2"))
@also("missing_collective", "none of them comes to the receive for which the other waits")
def _(point: InjectionPoint) -> None:
    """Ranks exchange a large tensor in pairs, and both of each pair send first."""
    dist.send(torch.zeros(1 << 22), point.rank ^ 1)
    dist.recv(torch.zeros(1 << 22), point.rank ^ 1)


@_odd_3("group_without_one", "missing_collective", ("validation", "collective"), at="joint", hangs=True)
@also("mismatched_collective", _OTHER)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """All ranks but one make a second process group of all ranks."""
    if not point.mine:
        dist.new_group()


@_odd_3("stopped_peers_raise", "stopped", ("collective",), at="joint", layouts=MANY, held_out=False)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank is stopped; the others wait 1.5 s for their collective, and raise."""
    if point.mine:
        os.kill(os.getpid(), signal.SIGSTOP)
    work = dist.all_reduce(torch.zeros(8), async_op=True)
    assert work is not None
    work.wait(timeout=timedelta(seconds=1.5))


@_odd_3("leaves_group", "user_code", ("collective", "validation"), layouts=MANY)
@also("missing_collective", "it left its process group, and never came to the collective of the others")
def _(point: InjectionPoint) -> None:
    """A rank leaves its process group and sleeps; the others' connections are closed."""
    dist.destroy_process_group()
    time.sleep(3600)


@_odd_4("other_tag", "mismatched_collective", ("exchange",), at="recv", hangs=True)
@also("missing_collective", "it waits for a message that is never sent, and never receives its neighbour's")
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage waits for a message with a tag with which its neighbour sends none."""
    dist.recv(tensor, peer, tag=7)


# Ends


@_ends_4("early_stop", "early_exit", ("step", "exchange"))
def _(point: InjectionPoint) -> NoReturn:
    """A rank finds its loss good enough, leaves its process group, and ends in good order."""
    dist.destroy_process_group()
    sys.exit(0)


@_ends_3("exit_handler_exits", "exit", ("shutdown",))
@also("shutdown", "the rank was done, and failed at its exit")
def _(point: InjectionPoint) -> None:
    """A rank is done, and its exit handler ends it with code 9."""
    atexit.register(os._exit, 9)


@_ends_4("handler_raises", "exception", ("forward", "exchange"), variants=(("forward", COUNTED),))
def _(point: InjectionPoint) -> None:
    """A timer's signal handler raises in the middle of what the rank does."""

    def on_timer(number: int, frame: Any) -> NoReturn:
        raise TimeoutError("the batch took longer than 0.2 s")

    signal.signal(signal.SIGALRM, on_timer)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    time.sleep(60)


@_ends_3("thread_hook_exits", "exception", ("step", "team"))
@also("exit", "the program's own hook ends the process, with an exit code of its choice")
def _(point: InjectionPoint) -> None:
    """A thread raises, and the program's threading.excepthook prints it and leaves with code 4."""

    def on_exception(given: threading.ExceptHookArgs) -> None:
        sys.__excepthook__(given.exc_type, given.exc_value or given.exc_type(), given.exc_traceback)
        sys.stderr.flush()
        os._exit(4)

    threading.excepthook = on_exception
    background([].pop)
    time.sleep(60)


@_ends_4("chained_reset", "exception", ("forward", "team"))
def _(point: InjectionPoint) -> NoReturn:
    """A rank raises a ValueError of its own, whose cause is a connection that a metrics service has reset."""
    try:
        raise ConnectionResetError(104, "Connection reset by peer")
    except ConnectionResetError as error:
        raise ValueError("no learning rate for step 6 in the schedule") from error


@_ends_3("all_raise", "exception", ("step",), blames=NO_RANK, held_out=False)
def _(point: InjectionPoint) -> NoReturn:
    """Every rank raises the same exception at the same step."""
    raise FloatingPointError("the loss is NaN")


# Healthy


@_well_3("paused_worker", "step", "2", at="data")
def _(point: InjectionPoint, path: str) -> None:
    """A worker of the data loader is stopped for 1 s, and continues."""
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


@_well_3("odd_exceptions", "forward", "4")
def _(point: InjectionPoint) -> None:
    """A finaliser, a thread and an exit handler raise, and a tool fails and is run again."""

    class Handle:
        def __del__(self) -> None:
            raise OSError(9, "Bad file descriptor")

    Handle()
    background([].pop).join()
    atexit.register([].pop)
    while subprocess.run(
        ["sh", "-c", f'test -e "{point.folder}/tool" || ! : > "{point.folder}/tool"']
    ).returncode:
        logging.error("tool: failed, once more")


@_well_4("barrier_in_time", "validation", "4", at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank comes 1.5 s late to a monitored barrier with a limit of 8 s."""
    if point.mine:
        time.sleep(1.5)
    dist.monitored_barrier(timeout=timedelta(seconds=8))


@_well_4("second_group", "collective", "3", at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """All ranks make a second group during the training, one of them 2 s late."""
    if point.mine:
        time.sleep(2)
    dist.all_reduce(tensor.clone(), group=dist.new_group())


@_well_4("uneven_stage", "backward", "2", COUNTED)
def _(point: InjectionPoint) -> None:
    """A stage needs 2.5 s for a microbatch, without a client."""
    total = time.monotonic() + 2.5
    while time.monotonic() < total:
        sum(range(1000))


@_well_4("retries", "forward", "2+2")
def _(point: InjectionPoint) -> None:
    """A service does not answer three times within half a second, and the rank continues without it."""
    for _ in range(3):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", point.port), timeout=0.5) as connection,
        ):
            connection.recv(1)
