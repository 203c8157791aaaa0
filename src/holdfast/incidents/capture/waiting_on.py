"""The system call that a rank's main thread waits in, and the object: a file, a connection's far end, a lock's owner.

The numbers are those of the kernel's headers (asm/unistd_64.h, asm-generic/unistd.h), for the calls in which a training
process is found waiting.
Always holds: links are read and never followed. Reading ``/proc/<pid>/syscall`` may wait for a process that becomes
another program just now, so it belongs in a thread.
Does not cover: the objects of `poll` and `select` (the list is in the process's memory), which lock a futex is, the
path of a file that is being opened; 32-bit programs, and machines other than x86_64 and aarch64, whose calls keep
their numbers.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..classify import target_of
from ..evidence import SystemCall, Target
from .procfs import content, link, names

# fmt: off
_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap",
    10: "mprotect", 11: "munmap", 12: "brk", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    21: "access", 23: "select", 24: "sched_yield", 25: "mremap", 26: "msync", 28: "madvise", 34: "pause",
    35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
    47: "recvmsg", 56: "clone", 58: "vfork", 59: "execve", 60: "exit", 61: "wait4", 65: "semop", 69: "msgsnd",
    70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 82: "rename", 83: "mkdir",
    87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 137: "statfs", 162: "sync", 202: "futex",
    208: "io_getevents", 217: "getdents64", 219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep",
    231: "exit_group", 232: "epoll_wait", 247: "waitid", 257: "openat", 258: "mkdirat", 262: "newfstatat",
    263: "unlinkat", 264: "renameat", 269: "faccessat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg", 306: "syncfs",
    310: "process_vm_readv", 316: "renameat2", 318: "getrandom", 322: "execveat", 326: "copy_file_range",
    332: "statx", 426: "io_uring_enter", 435: "clone3", 437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv",
}
_AARCH64 = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
    38: "renameat", 43: "statfs", 46: "ftruncate", 47: "fallocate", 48: "faccessat", 56: "openat", 57: "close",
    61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv",
    70: "pwritev", 71: "sendfile", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat", 81: "sync",
    82: "fsync", 83: "fdatasync", 93: "exit", 94: "exit_group", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 124: "sched_yield", 128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait",
    188: "msgrcv", 189: "msgsnd", 192: "semtimedop", 193: "semop", 202: "accept", 203: "connect", 206: "sendto",
    207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 214: "brk", 215: "munmap", 216: "mremap", 220: "clone",
    221: "execve", 222: "mmap", 226: "mprotect", 227: "msync", 233: "madvise", 242: "accept4", 243: "recvmmsg",
    260: "wait4", 267: "syncfs", 270: "process_vm_readv", 276: "renameat2", 278: "getrandom", 281: "execveat",
    285: "copy_file_range", 291: "statx", 426: "io_uring_enter", 435: "clone3", 437: "openat2", 441: "epoll_pwait2",
    449: "futex_waitv",
}
# fmt: on
NAMES: Mapping[str, Mapping[int, str]] = MappingProxyType({"x86_64": _X86_64, "aarch64": _AARCH64})
"""By machine, as `os.uname` names it."""

# fmt: off
ON_A_DESCRIPTOR = frozenset({
    "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "close", "fstat", "fsync",
    "fdatasync", "syncfs", "flock", "fcntl", "ftruncate", "fallocate", "ioctl", "getdents64", "connect",
    "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg", "sendfile", "copy_file_range",
})
# fmt: on
"""Those whose first argument is the descriptor that they wait for."""
EVENTS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
"""Those in which an event loop waits; the kernel shows for which descriptors."""
LOCKING = frozenset({"flock", "fcntl"})
"""Those in which a process waits for a file lock that another one has."""
FOR_A_CHILD = MappingProxyType({"wait4": 0, "waitid": 1})
"""Those in which a process waits for another one, and which argument names it."""
OPENING = frozenset({"open", "openat", "openat2"})
_OPENS_FIFO = ("wait_for_partner", "fifo_open")
_IN_PIPE = re.compile(r"(anon_)?pipe_|fifo_")
_INT_MAX = (1 << 31) - 1
LISTENS = "0A"  # the state of a TCP socket (proc(5))


def call(text: str, machine: str) -> tuple[str, tuple[int, ...]]:
    """Name and arguments, from ``/proc/<pid>/syscall`` (proc(5)); '' while it computes, and where nothing is shown.

    A call that the table does not have is named `number 123`.
    """
    try:
        number, *arguments = (int(word, 0) for word in text.split()[:7])
    except ValueError:  # empty, or `running`
        return "", ()
    if number < 0:
        return "", ()
    return NAMES.get(machine, {}).get(number, f"number {number}"), tuple(arguments)


def system_call(
    pid: int,
    wait_channel: str = "",
    family: Callable[[], Sequence[int]] = tuple,
    others: Sequence[int] = (),
) -> SystemCall:
    """What the main thread waits in; without a name while it computes.

    Args:
        wait_channel: The kernel's function in which it sleeps; that of a FIFO is the only sign of one.
        family: Finds processes one of which may have the other end of a pipe: its children.
        others: The other ranks of the node, one of which may have the other end of a TCP connection.
    """
    name, arguments = call(content(f"/proc/{pid}/syscall"), os.uname().machine)
    found = SystemCall(name)
    if name in FOR_A_CHILD:
        low = arguments[FOR_A_CHILD[name]] & 0xFFFFFFFF if len(arguments) > 1 else 0
        return replace(found, target=Target.PROCESS, pid=low if low <= _INT_MAX else 0)  # -1: any
    if name in OPENING and wait_channel in _OPENS_FIFO:
        return replace(found, target=Target.FIFO)
    if name in EVENTS and arguments:
        return _of_event_loop(pid, arguments[0], found, family)
    if name not in ON_A_DESCRIPTOR or not arguments or arguments[0] > _INT_MAX:
        return found
    path = link(f"/proc/{pid}/fd/{arguments[0]}")
    found = replace(found, path=path, target=target_of(path))
    if name in LOCKING:
        return replace(found, target=Target.LOCK, pid=holder(content("/proc/locks"), pid) or 0)
    if found.target is Target.FILE and _IN_PIPE.match(wait_channel):
        return replace(found, target=Target.FIFO)
    if found.target is Target.SOCKET:
        peer, inode = _far_end(pid, path)
        return replace(found, peer=peer, pid=_sharer(f"socket:[{inode}]", others) if inode else 0)
    if found.target is Target.PIPE and (child := _sharer(path, family())):
        return replace(found, target=Target.CHILD_PIPE, pid=child)
    return found


def kernel_stack(pid: int) -> tuple[str, ...]:
    """The functions of the main thread's kernel stack, the innermost first; empty unless the kernel shows it (root)."""
    found = re.findall(r"^\[<[^>]*>\] ([\w.]+)", content(f"/proc/{pid}/stack"), re.MULTILINE)
    return tuple(found[:32])


def _of_event_loop(
    pid: int, descriptor: int, found: SystemCall, family: Callable[[], Sequence[int]]
) -> SystemCall:
    """The first connection for which an epoll descriptor waits, else the first child (proc(5), fdinfo; at most 64)."""
    awaited = re.findall(r"^tfd:\s*(\d+)", content(f"/proc/{pid}/fdinfo/{descriptor}"), re.MULTILINE)[:64]
    paths = {each: link(f"/proc/{pid}/fd/{each}") for each in awaited}
    for path in paths.values():
        if target_of(path) is Target.SOCKET and (peer := _far_end(pid, path)[0]):
            return replace(found, path=path, peer=peer, target=Target.SOCKET)
    pidfds = [each for each, path in paths.items() if path == "anon_inode:[pidfd]"]
    for each in pidfds:
        watched = re.search(r"^Pid:\s*(\d+)", content(f"/proc/{pid}/fdinfo/{each}"), re.MULTILINE)
        if watched and int(watched[1]) in family():
            return replace(found, target=Target.PROCESS, pid=int(watched[1]))
    return found


def _far_end(pid: int, path: str) -> tuple[str, str]:
    """Of a TCP connection: its address, `10.0.0.7:29500`, and its inode where it is on this machine; '' for none."""
    inode = path[len("socket:[") : -1]
    for name in ("tcp", "tcp6"):
        lines = (line.split() for line in content(f"/proc/{pid}/net/{name}").splitlines()[1:])
        connections = [fields for fields in lines if len(fields) > 9 and fields[3] != LISTENS]
        for near in connections:
            if near[9] == inode:
                back = next((far[9] for far in connections if far[1:3] == [near[2], near[1]]), "")
                return address(near[2]), back
    return "", ""


def _sharer(path: str, family: Sequence[int]) -> int:
    """The first of the family that has this pipe open; 0 where none has."""
    for pid in family[:64]:
        if any(link(f"/proc/{pid}/fd/{each}") == path for each in names(f"/proc/{pid}/fd")[:256]):
            return pid
    return 0


def address(text: str) -> str:
    """An address of ``/proc/net/tcp`` (proc(5)), as `10.0.0.7:29500`."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


def holder(locks: str, pid: int) -> int | None:
    """The owner of the file lock that this process waits for, by ``/proc/locks`` (proc(5)); None: not named there."""
    owners: dict[str, int] = {}
    for line in locks.splitlines():
        fields = line.split()
        waits = "->" in fields
        fields = [field for field in fields if field != "->"]
        if len(fields) < 5 or not fields[4].lstrip("-").isdigit():
            continue
        if not waits:
            owners[fields[0]] = int(fields[4])
        elif int(fields[4]) == pid:
            return owners.get(fields[0])
    return None
