"""Locks, queues and threads of the rank's own process."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import queue
import threading
import time

from benchmarks.faults.deeds import deed
from benchmarks.faults.point import Point


@deed("lock")
def _(point: Point) -> None:
    guard = threading.Lock()
    with guard, guard:
        pass


@deed("two_locks")
def _(point: Point) -> None:
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


@deed("queue")
def _(point: Point) -> None:
    queue.Queue[int]().get()


@deed("file_lock")
def _(point: Point) -> None:
    with open(point.folder / "locked") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@deed("process_lock")
def _(point: Point) -> None:
    guard = multiprocessing.get_context("fork").Lock()
    if (pid := os.fork()) == 0:
        guard.acquire()
        os._exit(0)
    os.waitpid(pid, 0)
    guard.acquire()


@deed("thread_barrier")
def _(point: Point) -> None:
    threading.Barrier(2).wait()


@deed("event")
def _(point: Point) -> None:
    threading.Event().wait()


@deed("thread")
def _(point: Point) -> None:
    other = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    other.start()
    other.join()


@deed("native_lock")
def _(point: Point) -> None:
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


@deed("worker_lock", place="data")
def _(point: Point, path: str) -> None:
    guard = threading.Lock()
    with guard, guard:
        pass


@deed("prefetcher", place="data")
def _(point: Point, path: str) -> None:
    items: queue.Queue[str] = queue.Queue()
    ahead = threading.Thread(target=lambda: None)
    ahead.start()
    ahead.join()
    items.get()
