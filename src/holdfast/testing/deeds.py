"""What each kind of fault does to this process. The one module that harms.

`perform` is called on the rank that a fault is for, in the thread where it must happen (see `Kind.in_main_thread`).
What always holds: `memory` and `child` are bounded, so no fault endangers the machine; a fault writes no core file.
What this does not cover: a free-threaded Python has no GIL, so there `gil` is a busy loop in one thread and no more.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.testing.errors import FaultSpecError, InjectedFault
from holdfast.testing.fault import MIB, Fault

__all__ = ["perform"]

#: A leftover child ends by itself after this time: a test that fails to sweep it must not litter the machine.
CHILD_SECONDS = 600.0
MEMORY_STEP = 8 * MIB

_CHILD = """
import os, signal, sys, time
if sys.argv[2] == "yes":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready = int(sys.argv[3])
os.write(ready, b".")
os.close(ready)
time.sleep(float(sys.argv[1]))
"""
# Kept, because a Popen that is collected while its child runs warns about it.
_children: list[subprocess.Popen[bytes]] = []


def perform(fault: Fault) -> None:
    """Does it. Most kinds do not return; `sleep` and `gil` return when they have a duration."""
    _DEEDS[fault.kind](fault)


def _exit(fault: Fault) -> None:
    # As when a C library calls _exit: what was printed is seen, but no finally, atexit or checkpoint runs.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(fault.code)


def _exception(fault: Fault) -> None:
    raise InjectedFault(fault.message or f"injected by holdfast.testing: {fault}")


def _kill(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _segv(fault: Fault) -> None:
    # A core file of a training process is gigabytes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    ctypes.string_at(0)


def _sleep(fault: Fault) -> None:
    end = time.monotonic() + (math.inf if fault.duration is None else fault.duration)
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 3600.0))


def _gil(fault: Fault) -> None:
    end = time.monotonic() + (math.inf if fault.duration is None else fault.duration)
    # Every part of this line is implemented in C, so the interpreter, which lets other threads in between two
    # bytecodes, gets no turn until the clock has passed `end`. Handlers written in Python do not run either.
    any(map(end.__lt__, iter(time.monotonic, None)))


def _memory(fault: Fault) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + min(fault.limit, _available_memory() // 2)
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    hoard: list[bytes] = []
    try:
        while True:
            hoard.append(b"\xff" * MEMORY_STEP)  # Not zeros: those the kernel would not have to provide.
    except MemoryError:
        size = len(hoard) * MEMORY_STEP // MIB
        hoard.clear()
        raise MemoryError(f"injected by holdfast.testing: {size} MiB more did not fit ({fault})") from None
    finally:
        # Or even the traceback could not be printed.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _half_save(fault: Fault) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise FaultSpecError("fault 'half_save': Python sets signal handlers in the main thread only")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The write that crosses the limit is cut there, and the next one ends the process: in whatever library it is.
    resource.setrlimit(resource.RLIMIT_FSIZE, (fault.size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would see an OSError


def _ignore_term(fault: Fault) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise FaultSpecError("fault 'ignore_term': Python sets signal handlers in the main thread only")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _child(fault: Fault) -> None:
    read_end, write_end = os.pipe()
    try:
        seconds = CHILD_SECONDS if fault.duration is None else fault.duration
        ignore = "yes" if fault.ignore_term else "no"
        # It inherits our stdout and stderr on purpose, as leftovers do: whoever waits for their end waits for it.
        command = [sys.executable, "-I", "-S", "-c", _CHILD, str(seconds), ignore, str(write_end)]
        _children.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[write_end])
        )
        os.close(write_end)
        write_end = -1
        os.read(read_end, 1)  # It has its session and its handler from here on.
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _available_memory() -> int:
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        lines = dict(line.split(":", 1) for line in meminfo)
    return int(lines["MemAvailable"].split()[0]) * 1024


_DEEDS: Mapping[str, Callable[[Fault], None]] = MappingProxyType(
    {
        "exit": _exit,
        "exception": _exception,
        "kill": _kill,
        "stop": _stop,
        "segv": _segv,
        "sleep": _sleep,
        "gil": _gil,
        "memory": _memory,
        "half_save": _half_save,
        "ignore_term": _ignore_term,
        "child": _child,
    }
)
