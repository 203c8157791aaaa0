"""A standby: forked ahead, a child of the launcher, waiting at the gate for the rank that it is to be.

Until then it is deaf to the training's signals; it ends with the launcher, or when its gate is closed. At the gate it
gets what a new process would have got by exec: environment and output; then it makes new what no two processes may
share, and says that it goes. It has a session of its own, as torch's agent starts ranks.
Source: fork(2), prctl(2), PR_SET_PDEATHSIG; multiprocessing's authentication key.
Does not cover: random generators of other packages than Python, numpy and torch that were seeded by being imported.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import wire

PR_SET_PDEATHSIG = 1
ADOPTION = 2.0  # seconds in which the kernel has given an orphan to the launcher
GOES = b"g"


def fork(launcher: int) -> int:
    """0 in a new standby, which is a child of the launcher; its pid in the zygote. OSError when there is none."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        parent = os.getpid()
        try:
            if (standby := os.fork()) == 0:
                os.close(reader)
                os.close(writer)
                _outlive(parent)
                tie(launcher)
                return 0
            os.write(writer, standby.to_bytes(4, "little"))
            os._exit(0)
        except BaseException:
            os._exit(1)  # whichever of the two it is: it must not speak for the zygote
    os.close(writer)
    told = os.read(reader, 4)
    os.close(reader)
    os.waitpid(middle, 0)
    if not told:
        raise BlockingIOError("no process can be forked")
    return int.from_bytes(told, "little")


def _outlive(parent: int) -> None:
    """Until the parent has ended, and the kernel has given away its children. Not sooner: while it does so, it sends
    the parent-death signal to those that ask for it in this very moment."""
    until = time.monotonic() + ADOPTION
    while _runs(parent) and time.monotonic() < until:
        time.sleep(0.0002)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False  # it has been waited for


def tie(launcher: int) -> None:
    """End with the launcher, whose child this process is, or is about to be."""
    until = time.monotonic() + ADOPTION
    while os.getppid() != launcher:
        if time.monotonic() > until:
            os._exit(1)
        time.sleep(0.0002)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def wait(gate: socket.socket, get_ready: Callable[[dict[str, Any]], None]) -> None:
    """Until this process is let through; never returns if it is not."""
    os.setsid()
    try:
        told = wire.receive(gate)
    except OSError:
        told = None
    if told is None:
        os._exit(0)
    message, descriptors = told
    # Where standard streams were closed, what was received may have one of their numbers.
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in descriptors]
    wire.close(descriptors)
    for stream, descriptor in zip(message["streams"], aside, strict=True):
        os.dup2(descriptor, stream)
    wire.close(aside)
    get_ready(message)
    gate.send(GOES)
    gate.close()


def set_environment(given: Mapping[str, str], changes: Mapping[str, str | None]) -> None:
    """As given, and on top of it what the imported modules have set or removed."""
    os.environ.clear()
    os.environ.update(given)
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def renew() -> None:
    """Make new what two processes must not have in common. Python's own `random` does so by itself at a fork."""
    threads = sys.modules.get("threading")
    if threads is not None:
        threads.main_thread()._set_native_id()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # from the system, as at its import
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
