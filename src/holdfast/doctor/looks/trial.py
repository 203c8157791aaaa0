"""A program of its own: tries what a launcher does with processes, and prints why each thing failed, as JSON.

It runs isolated, without site, and imports nothing of Holdfast. What always holds: whatever it started has ended
before it does, by PR_SET_PDEATHSIG also where it is killed.
Source: prctl(2), ptrace(2), pidfd_open(2), yama in the kernel's documentation.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Try everything; the program's whole output is one line."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    trials: dict[str, Callable[[], None]] = {
        "pidfd": pidfd,
        "subreaper": subreaper,
        "pdeathsig": pdeathsig,
        "ptrace": ptrace,
    }
    print(json.dumps({name: why(trial) for name, trial in trials.items()}))


def why(trial: Callable[[], None]) -> str:
    """Why it failed; empty when it did not."""
    try:
        trial()
    except (OSError, AttributeError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def pidfd() -> None:
    """A child is ended through its handle."""
    child = asleep()
    try:
        handle = os.pidfd_open(child)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    finally:
        end(child)


def subreaper() -> None:
    """A grandchild whose parent has ended becomes a child of this process."""
    checked(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    orphan, _ = grandchild(0)
    os.kill(orphan, signal.SIGKILL)
    os.waitpid(orphan, 0)


def pdeathsig() -> None:
    """A process ends with its parent."""
    orphan, done = grandchild(signal.SIGKILL)
    try:
        if os.waitpid(orphan, 0)[1] != signal.SIGKILL:
            raise ValueError("the process has outlived its parent")
    except ChildProcessError:  # no subreaper, said before: the pipe's end tells as well
        os.read(done, 1)


def ptrace() -> None:
    """One child seizes the other, neither being the other's parent."""
    target = asleep()
    try:
        answer, told = os.pipe()
        child = os.fork()
        if child == 0:
            result = libc.ptrace(PTRACE_SEIZE, target, None, None)
            os.write(told, bytes([0 if result == 0 else ctypes.get_errno()]))
            os._exit(0)
        os.close(told)
        number = (os.read(answer, 1) or b"\0")[0]
        os.close(answer)
        os.waitpid(child, 0)
    finally:
        end(target)
    if number:
        raise OSError(number, os.strerror(number))


def asleep() -> int:
    """A child that waits until it is killed."""
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while True:
            signal.pause()
    return child


def grandchild(deathsig: int) -> tuple[int, int]:
    """A child's child that waits, as its parent ends: its pid, and a pipe that closes when it has ended."""
    answer, told = os.pipe()
    go, ready = os.pipe()
    child = os.fork()
    if child == 0:
        own = os.fork()
        if own == 0:
            libc.prctl(PR_SET_PDEATHSIG, deathsig or 0, 0, 0, 0)
            os.write(told, os.getpid().to_bytes(4, "little"))
            os.write(ready, b"+")
            signal.setitimer(signal.ITIMER_REAL, 0.5)  # whatever goes wrong, it ends
            while True:
                signal.pause()
        os.read(go, 1)
        os._exit(0)
    os.close(told)
    os.close(go)
    os.close(ready)
    pid = int.from_bytes(os.read(answer, 4), "little")
    os.waitpid(child, 0)
    return pid, answer


def end(child: int) -> None:
    """SIGKILL, and reap."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def checked(result: int) -> None:
    """Raise for what libc refused."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
