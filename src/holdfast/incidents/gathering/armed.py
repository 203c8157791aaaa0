"""What a rank has armed, and its main thread's stack by the signal, sent only to a process that surely expects it.

An unarmed process would die of the signal. So before each: the process is the one meant (pid and start time, by a
handle), it runs or waits (a stopped one cannot answer), it handles this signal and does not hold it back, and the
descriptor that the signal writes to still leads to our file. Never raises; waits no longer than it is told to.
Does not cover: a program that puts a handler of its own in the place of ours: that one is called.
"""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass

from holdfast.fault_tolerance.processes import pidfd, proc

MOST_STACK = 1 << 24
"""Bytes in the file of stacks after which nobody signals any more."""
POLL = 0.001
PASSES = 0.02
"""Seconds after which a process in state D is taken to stay in it."""
AFTERWARDS = 0.03
"""Seconds that what was dumped may come after the signal is no longer pending: another thread took it."""


@dataclass(frozen=True, slots=True)
class Armed:
    """What the rank says of itself in `L.armed`."""

    pid: int
    signal: int
    descriptor: int
    thread: bool


def read_armed(prefix: str, pid: int) -> Armed | None:
    """What this process has armed; None where it has not."""
    try:
        said = json.loads(private(f"{prefix}.armed", 4096))
        found = Armed(int(said["pid"]), int(said["signal"]), int(said["descriptor"]), said["thread"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.pid == pid and 0 < found.signal < 65 else None


def private(path: str, most: int) -> bytes:
    """The content of a file of this user's, up to `most` bytes; raises OSError where it is anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return b"" if not is_ours(handle, stat.S_IFREG) else _all(handle, 0, most)
    finally:
        os.close(handle)


def is_ours(handle: int, kind: int) -> bool:
    """Whether what is open there belongs to this user and is of this kind (`stat.S_IFREG`, `stat.S_IFIFO`)."""
    found = os.fstat(handle)
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def dumped(prefix: str, armed: Armed, start_time: int, until: float) -> tuple[str, str]:
    """The main thread's stack in faulthandler's words, or why there is none."""
    try:
        handle = os.open(f"{prefix}.stack", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "", f"{prefix}.stack: {error.strerror}"
    try:
        before = os.fstat(handle).st_size
        if not is_ours(handle, stat.S_IFREG) or before > MOST_STACK:
            return "", f"{prefix}.stack is not what it should be"
        with pidfd.verified(armed.pid, start_time) as process:
            if process is None:
                return "", "the process is gone"
            why_not = why_no_signal(armed, handle)
            if why_not:
                return "", why_not
            if not pidfd.send(process, armed.signal):
                return "", "the process is gone"
        return _written(handle, before, armed, until)
    except OSError as error:
        return "", f"it cannot be signalled: {error.strerror}"
    finally:
        os.close(handle)


def why_no_signal(armed: Armed, handle: int) -> str:
    """Why this process must not have the signal now; '' where it may."""
    state = _state(armed.pid)
    if state not in ("R", "S"):
        return f"its state is {state}: it cannot answer a signal"
    masks = signals(armed.pid)
    bit = 1 << (armed.signal - 1)
    if not masks.get("SigCgt", 0) & bit:
        return "it does not handle the signal any more"
    if masks.get("SigBlk", 0) & bit:
        return "its main thread holds signals back"
    try:
        theirs = os.stat(f"/proc/{armed.pid}/fd/{armed.descriptor}")
    except OSError:
        return "it has closed the descriptor for its stacks"
    ours = os.fstat(handle)
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
        return "it uses the descriptor for its stacks for something else"
    return ""


def _state(pid: int) -> str:
    """Its state; one that waits for a disk has a moment to come back from it, as most do."""
    ends = time.monotonic() + PASSES
    while (found := proc.stat(pid)) and found.state == "D" and time.monotonic() < ends:
        time.sleep(POLL)
    return found.state if found else "gone"


def signals(pid: int) -> dict[str, int]:
    """The masks of signals in ``/proc/<pid>/status``; empty where that cannot be read."""
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = [line.split() for line in file if line.startswith(("Sig", "ShdPnd"))]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1], 16) for words in lines if words[0] != "SigQ:"}


def _written(handle: int, before: int, armed: Armed, until: float) -> tuple[str, str]:
    """Complete once the signal is neither pending nor, as it is while its handler runs, held back."""
    bit, ends = 1 << (armed.signal - 1), 0.0
    while True:
        masks = signals(armed.pid)
        now = time.monotonic()
        busy = any(masks.get(name, 0) & bit for name in ("SigPnd", "ShdPnd", "SigBlk"))
        if not busy:
            text = _all(handle, before, 1 << 20).decode(errors="replace")
            ends = ends or now + AFTERWARDS
            if text:
                return text, ""
            if now >= ends:
                return "", "it answered the signal, and wrote nothing (is there room in /dev/shm?)"
        if now >= until:
            return "", "it did not answer the signal in time"
        time.sleep(max(0.0, min(POLL, until - now)))


def _all(handle: int, start: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.pread(handle, most, start)):
        parts.append(part)
        start += len(part)
        most -= len(part)
    return b"".join(parts)
