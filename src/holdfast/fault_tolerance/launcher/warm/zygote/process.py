"""What can be seen of this process from outside its modules: threads, descriptors, children, timers, signals.

Source: proc(5). Does not cover: memory that a module keeps, and locks on files.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TASKS = "/proc/self/task"
SETTLES = 0.2  # seconds in which a thread that has done its work is gone
DRIVER = b"/libcuda.so"
NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED: what every function of the driver gives before cuInit


def threads() -> int:
    """How many this process has, those aside that are known to bear a fork."""
    count = os.stat(TASKS).st_nlink - 2
    if count < 1:  # a /proc of another kind
        count = len(os.listdir(TASKS))
    return count if count == 1 else count - _harmless()


def _harmless() -> int:
    """jemalloc's thread in Arrow, which pandas brings: its own fork handlers take care of it in both processes."""
    names = []
    for task in os.listdir(TASKS):
        with suppress(OSError), open(f"{TASKS}/{task}/comm", "rb") as file:
            names.append(file.read().rstrip())
    count = names.count(b"jemalloc_bg_thd")
    return count if count and _has_library(b"/libarrow") else 0


def more_than_one_thread() -> bool:
    """Whether others than the main thread stay."""
    until = time.monotonic() + SETTLES
    while threads() > 1:
        if time.monotonic() > until:
            return True
        time.sleep(0.005)
    return False


def descriptors() -> dict[int, str]:
    """Open descriptors and what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists this folder is closed by now
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def has_children() -> bool:
    """Also those that have ended and were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def timer_runs() -> bool:
    """Whether an interval timer is set: no child would inherit it."""
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return any(signal.getitimer(timer)[0] for timer in timers)


def ignored_signals() -> int:
    """The kernel's mask: bit n is signal n + 1."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigIgn:"):
                return int(line.split()[1], 16)
    return 0


def has_initialised_cuda() -> bool:
    """Whether CUDA is initialised in this process, which no fork survives.

    That the driver's library is loaded says nothing: torch brings libcublasLt, which loads it and calls nothing.
    Source: CUDA driver API, cuInit. A library that cannot be asked counts as initialised.
    """
    with open("/proc/self/maps", "rb") as file:
        paths = {line.split()[-1] for line in file if DRIVER in line}
    count = ctypes.c_int()
    for path in paths:
        try:
            library = ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOLOAD)
            if library.cuDeviceGetCount(ctypes.byref(count)) != NOT_INITIALISED:
                return True
        except (OSError, AttributeError):
            return True
    return False


def _has_library(part: bytes) -> bool:
    with open("/proc/self/maps", "rb") as file:
        return part in file.read()


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fork_fault(limit: float = 2.0) -> str:
    """Fork once, in vain: handlers that modules have registered for forks run, in this process and in the child.
    Returns what goes wrong ('' for nothing).

    One of Python's that waits for ever in this process is interrupted, which Python tells as an exception in it.
    """
    with _interrupted_after(limit):
        child = os.fork()
        if child == 0:
            os._exit(0)
    until = time.monotonic() + limit
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "" if status == 0 else f"a forked child ended with status {status}"
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "a forked child hangs in a handler that it registered for forks"
        time.sleep(0.0005)
