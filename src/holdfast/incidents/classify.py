"""Texts of programs, torch and the kernel as codes: the nature of an exception or of the last lines of stderr. Pure.

The capture calls these functions, so that no rule reads a text.
Does not cover: an exception of the program's own that reports in other words that a peer was gone.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from typing import Any

from .evidence import Frame, Nature, Raised, Target

DYING, DYING_WITH_GPU = 1.0, 10.0
"""Seconds for which a process may still exist after the kernel has closed its connections, so that its peers fail."""

LOST_PEER = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused|aborted)|broken pipe|remote process exited|ncclRemoteError"
    r"|pair closure|failed to recv|socket (has been )?closed|communicator was aborted|pair\.cc:\d+\] no error"
    r"|socket(start|poll)connect: ",
    re.IGNORECASE,
)
"""What torch raises for gloo, NCCL and the store."""
_TIMED_OUT = re.compile(
    r"timed out waiting \d|watchdog caught collective|collective operation timeout|wait timeout after|"
    r"timed out (after|in) .*(barrier|collective|store|rendezvous|clients|trying to connect)|"
    r"failed to pass monitoredBarrier|waitForInput: .*time(d )?out|"
    r"timed out waiting for clients|socket timeout|wait for .* timed out|operations have failed or timed out|"
    r"^RuntimeError: operation timed out!",
    re.IGNORECASE,
)
_MISMATCH = re.compile(
    r"preamble\.(length|opcode|slot)|mismatch between collectives|(tensor|size)s? mismatch.*rank|"
    r"collective .*mismatch|unexpected collective",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"out[ -]of[ -]memory|want of memory|not enough memory|can(?:no|')t allocate memory|bad_alloc|OutOfMemory|"
    r"oom.?kill|^MemoryError|Killed process \d",
    re.IGNORECASE | re.MULTILINE,
)
_BROKEN_GPU = re.compile(
    r"uncorrectable ECC|GPU is lost|fallen off the bus|hardware stack error|uncorrectable NVLink error",
    re.IGNORECASE,
)
_BROKEN_DISK = re.compile(r"^\[Errno (5|30)\] ")  # EIO, EROFS
_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (\d{1,9}).*(?:Killed|exited unexpectedly)", re.DOTALL
)
_BARRIER = re.compile(
    r"ranks?:?\s*\[?(\d{1,8}(?:\s*,\s*\d{1,8})*)\]?\s+failed to pass monitoredBarrier", re.IGNORECASE
)
_TRACEBACK_LINE = re.compile(r'^\s*File "([^"]+)", line (\d{1,9}), in (\S+)', re.MULTILINE)
_EXCEPTION_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?::|$)")
_TORCHS_EXCEPTIONS = ("RuntimeError", "error")
_OF_PEERS = ("DistBackendError", "DistNetworkError", "DistStoreError")
"""torch's exceptions about other ranks and the store: without a known text they count as a lost peer."""
_NOT_OF_PEERS = re.compile(r"cuda (error|failure)|invalid usage|server socket has failed", re.IGNORECASE)
"""What they contain where the rank's own GPU, arguments or port are the cause."""


def raised(type_: str, message: str, traceback: str, ago: float, *, lost_peer: bool = False) -> Raised:
    """An exception with its nature in codes; `lost_peer`: it is known already that it reports only that."""
    absent = _BARRIER.search(message)
    worker = _WORKER.search(message)
    nature = Nature.LOST_PEER if lost_peer else nature_of_exception(type_, message)
    return Raised(
        type_,
        message,
        traceback,
        ago,
        Nature.WORKER_KILLED if worker and nature is Nature.OWN else nature,
        int(worker[1]) if worker else 0,
        tuple(int(number) for number in absent[1].split(",")) if absent else (),
        tuple(
            Frame(name, file, int(line)) for file, line, name in reversed(_TRACEBACK_LINE.findall(traceback))
        ),
    )


def nature_of_exception(type_: str, message: str) -> Nature:
    """The nature of an exception, by its type (`torch.distributed.DistBackendError`) and its message.

    Only torch's own exceptions mean that a collective timed out or a peer was gone: a `ConnectionResetError` or a
    `requests.ReadTimeout` is about a connection of the program's own, and may well be the cause.
    """
    name = type_.rsplit(".", 1)[-1]
    text = f"{name}: {message}"
    if name.startswith("Dist") or name in _TORCHS_EXCEPTIONS:
        if _TIMED_OUT.search(text):
            return Nature.TIMED_OUT
        if LOST_PEER.search(message):
            return Nature.LOST_PEER
    if name in ("KeyboardInterrupt", "SignalException"):
        return Nature.INTERRUPTED
    if _MEMORY.search(text):
        return Nature.OUT_OF_MEMORY
    if _MISMATCH.search(message):
        return Nature.MISMATCH
    if _BROKEN_GPU.search(message):
        return Nature.BROKEN_GPU
    if _BROKEN_DISK.search(message):
        return Nature.BROKEN_DISK
    return Nature.LOST_PEER if name in _OF_PEERS and not _NOT_OF_PEERS.search(message) else Nature.OWN


_DEVICE = re.compile(r"CUDA|cuDNN|NCCL|\bECC\b|\bXid\b", re.IGNORECASE)


def comes_from_outside(type_: str, message: str) -> bool:
    """Whether a disk, a network, a GPU or too little memory may cause an exception: another node, or a later moment,
    may do without it."""
    name = type_.rsplit(".", 1)[-1]
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, OSError):
        return True
    return (
        "Timeout" in name
        or "Connection" in name
        or name == "AcceleratorError"
        or bool(_DEVICE.search(message))
        or nature_of_exception(type_, message) is not Nature.OWN
    )


def nature_of_lines(lines: Sequence[str]) -> Nature:
    """The nature of the last lines of stderr, of a rank that left no exception. An exception's line goes first."""
    text = "\n".join(lines)
    if last := exception_line(lines):
        type_, _, message = last.strip().partition(": ")
        nature = nature_of_exception(type_, message)
        return Nature.PYTHON_ERROR if nature is Nature.OWN else nature
    for nature, pattern in (
        (Nature.LOST_PEER, LOST_PEER),
        (Nature.TIMED_OUT, _TIMED_OUT),
        (Nature.OUT_OF_MEMORY, _MEMORY),
        (Nature.MISMATCH, _MISMATCH),
    ):
        if pattern.search(text):
            return nature
    return Nature.OWN


def exception_line(lines: Sequence[str]) -> str:
    """The last line that has the form of an exception's, for people; '' where none has."""
    return next((line for line in reversed(lines) if _EXCEPTION_LINE.match(line.strip())), "")


def target_of(path: str) -> Target:
    """The kind of object behind a descriptor, by the link in ``/proc/<pid>/fd``."""
    if path.startswith("socket:"):
        return Target.SOCKET
    if path.startswith("pipe:"):
        return Target.PIPE
    if path.startswith(("/dev/tty", "/dev/pts", "/dev/stdin")):
        return Target.TERMINAL
    if path.startswith("/"):
        return Target.FILE
    return Target.UNKNOWN


def peer_of(operation: str, members: Sequence[int]) -> int | None:
    """The other rank of a send or receive as torch's recorder names it (`nccl:send 0->1`, `recv 1<-0`): a global rank.

    The numbers are those within the group; `members` are its global ranks, in order.
    """
    found = re.search(r"\b(?:send|recv)\w* (\d{1,8})\s*(?:->|<-)\s*(\d{1,8})", operation)
    if found is None:
        return None
    number = int(found[2])
    return members[number] if number < len(members) else None if members else number


def is_p2p(operation: Any) -> bool:
    """Whether an operation of torch's recorder is a send or a receive."""
    name = str(operation).rpartition(":")[2].split(" ")[0]
    return name in ("send", "recv", "isend", "irecv", "recv_anysource")
