"""The effect of each kind of fault on this process. The one module that harms.

`perform` is called on the rank that a fault is for, in the thread where it must happen (see `Kind.in_main_thread`).
`memory` and `child` are bounded, so no fault endangers the machine; a fault writes no core file.
Does not cover: a free-threaded Python has no GIL, so there `gil` is a busy loop in one thread and no more.
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
from pathlib import Path
from types import MappingProxyType

from holdfast.testing.fault import MIB, Fault, FaultSpecError, InjectedFault

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
    """Cause the fault. Most kinds do not return; `sleep` and `gil` return when they have a duration."""
    _ACTIONS[fault.kind](fault)


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
    _lower(resource.RLIMIT_CORE, 0)  # a core file of a training process is gigabytes
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
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit = used + min(fault.limit, available // 2)
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
    _check_main_thread(fault)
    _lower(resource.RLIMIT_CORE, 0)
    # The write that crosses the limit is cut there, and the next one ends the process: in whatever library it is.
    _lower(resource.RLIMIT_FSIZE, fault.size)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would see an OSError


def _ignore_term(fault: Fault) -> None:
    _check_main_thread(fault)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _child(fault: Fault) -> None:
    read_end, write_end = os.pipe()
    try:
        seconds = CHILD_SECONDS if fault.duration is None else fault.duration
        ignore = "yes" if fault.ignore_term else "no"
        # It inherits our stdout and stderr on purpose, as leftovers do: a reader that waits for their end waits for it.
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


def _lower(limit: int, soft: int) -> None:
    resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))


def _check_main_thread(fault: Fault) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise FaultSpecError(f"fault {fault.kind!r}: Python sets signal handlers in the main thread only")


_ACTIONS: Mapping[str, Callable[[Fault], None]] = MappingProxyType(
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
