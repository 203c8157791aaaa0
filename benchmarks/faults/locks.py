"""Faults by which a rank waits for a lock, a queue, a thread or a future."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import logging.handlers
import multiprocessing
import os
import queue
import sqlite3
import sys
import threading
import time
from typing import Any

from benchmarks.faults.corpus import OWN_CODE, STARTED, TRAINING, also, fault, second
from benchmarks.faults.injection import InjectionPoint, background

# Of its own process


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


# Of another process


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


@fault(
    "cache_under_lock",
    "user_code",
    ("collective", "checkpoint"),
    at="joint",
    layouts=("4", "3", "2"),
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank computes a cache forever and has locked its file; the others wait for this lock."""
    if not point.mine:
        time.sleep(0.5)
    with open(point.folder / "cache", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        number = 1
        while point.mine:
            number = number * 48271 % 2147483647
