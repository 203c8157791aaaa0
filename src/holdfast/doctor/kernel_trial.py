"""A program of its own: it tries what a launcher does with processes, and prints an error for each, as JSON.

It runs isolated, without site, and imports nothing of Holdfast. Always holds: every process that it started has ended
before it ends; PR_SET_PDEATHSIG sees to that if it is killed.
Source: prctl(2), ptrace(2), pidfd_open(2), Yama in the kernel's documentation.
Does not cover: capabilities of other users, and of processes in other containers.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Try everything and print one line."""
    require(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    trials = (pidfd, subreaper, pdeathsig, ptrace)
    print(json.dumps({trial.__name__: error_of(trial) for trial in trials}), flush=True)


def error_of(trial: Callable[[], None]) -> str:
    """Why the trial failed; empty if it did not."""
    try:
        trial()
    except (OSError, AttributeError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def pidfd() -> None:
    """Kill a child through its handle."""
    child = sleeping_child()
    try:
        handle = os.pidfd_open(child)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    finally:
        kill(child)


def subreaper() -> None:
    """Adopt a grandchild whose parent has ended."""
    require(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    orphan, _ = orphaned_grandchild(0)
    kill(orphan)


def pdeathsig() -> None:
    """Have a process killed when its parent ends."""
    orphan, pipe = orphaned_grandchild(signal.SIGKILL)
    try:
        if os.waitpid(orphan, 0)[1] != signal.SIGKILL:
            raise ValueError("the process has outlived its parent")
    except ChildProcessError:  # no subreaper: the pipe closes when the process has ended
        os.read(pipe, 1)


def ptrace() -> None:
    """One child seizes the other; neither is the other's parent."""
    target = sleeping_child()
    try:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            result = libc.ptrace(PTRACE_SEIZE, target, None, None)
            os.write(writing, bytes([0 if result == 0 else ctypes.get_errno()]))
            os._exit(0)
        os.close(writing)
        number = (os.read(reading, 1) or b"\0")[0]
        os.close(reading)
        os.waitpid(child, 0)
    finally:
        kill(target)
    if number:
        raise OSError(number, os.strerror(number))


def sleeping_child() -> int:
    """A child that waits until it is killed."""
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while True:
            signal.pause()
    return child


def orphaned_grandchild(death_signal: int) -> tuple[int, int]:
    """A grandchild that waits while its parent ends: its pid, and a pipe that closes when it has ended."""
    reading, writing = os.pipe()
    ready, set_ready = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            os.write(writing, os.getpid().to_bytes(4, "little"))
            os.write(set_ready, b"+")
            signal.setitimer(signal.ITIMER_REAL, 0.5)  # it ends, whatever fails
            while True:
                signal.pause()
        os.read(ready, 1)
        os._exit(0)
    for descriptor in (writing, ready, set_ready):
        os.close(descriptor)
    pid = int.from_bytes(os.read(reading, 4), "little")
    os.waitpid(child, 0)
    return pid, reading


def kill(child: int) -> None:
    """SIGKILL, and reap."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def require(result: int) -> None:
    """Raise the error of a failed call of libc."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
