"""What ``/proc/<pid>/syscall`` says: the system call that a thread waits in, by name. Pure.

The numbers are those of the kernel's headers (asm/unistd_64.h, asm-generic/unistd.h), for the calls in which a training
process is found waiting.
Does not cover: 32-bit programs, and machines other than x86_64 and aarch64; their calls keep their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
LOCKING = frozenset({"flock", "fcntl"})
"""Those in which a process waits for a file lock that another one has."""
FOR_A_CHILD = MappingProxyType({"wait4": 0, "waitid": 1})
"""Those in which a process waits for another one, and which argument names it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call under way."""

    name: str
    arguments: tuple[int, ...] = ()

    @property
    def descriptor(self) -> int | None:
        """The one that it waits for, where it is one of these calls."""
        return self.arguments[0] if self.name in ON_A_DESCRIPTOR and self.arguments else None


def call(text: str, machine: str) -> Call | None:
    """From ``/proc/<pid>/syscall`` (proc(5)); None while the thread computes, and where nothing is told.

    A call that the table does not have is named `system call 123`.
    """
    words = text.split()
    try:
        number, *arguments = (int(word, 0) for word in words[:7])
    except ValueError:  # empty, or `running`
        return None
    if number < 0:
        return None
    name = NAMES.get(machine, {}).get(number, f"number {number}")
    return Call(name, tuple(arguments))
