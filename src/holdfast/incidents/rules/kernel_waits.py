"""What a process waits in, by its system call and the kernel's function in which it sleeps. Pure.

Does not cover: a name that the tables lack; that wait is unknown. What a wait is for: a file may hold data, a
checkpoint or a log (`signatures`).
"""

from __future__ import annotations

import re
from enum import Enum

from ..evidence import Process, Target

BUSY = 0.5  # share of the time between two samples that counts as computing


class Wait(Enum):
    """What a main thread waits in."""

    UNKNOWN, COMPUTES, SLEEPS, FUTEX, FILE_LOCK, CHILD = range(6)
    CONNECTION, POLL, READ, WRITE, PIPE, FIFO = range(6, 12)


_CALLS = {
    Wait.SLEEPS: "nanosleep clock_nanosleep pause rt_sigsuspend rt_sigtimedwait",
    Wait.FUTEX: "futex futex_waitv semop semtimedop",
    Wait.FILE_LOCK: "flock fcntl",
    Wait.CHILD: "wait4 waitid",
    Wait.CONNECTION: "connect accept accept4 recvfrom recvmsg recvmmsg sendto sendmsg",
    Wait.POLL: "poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2",
    Wait.READ: "read pread64 readv preadv open openat openat2 stat lstat newfstatat statx access faccessat getdents64 "
    "io_getevents statfs io_uring_enter",
    Wait.WRITE: "write pwrite64 writev pwritev fsync fdatasync sync syncfs msync close rename renameat renameat2 "
    "ftruncate fallocate mkdir mkdirat unlink unlinkat sendfile copy_file_range",
}
_WAIT_OF_CALL = {name: wait for wait, names in _CALLS.items() for name in names.split()}
_WAIT_OF_CHANNEL = tuple(
    (wait, re.compile(functions))
    for wait, functions in (
        (Wait.SLEEPS, r"nanosleep|do_sigtimedwait|sigsuspend"),
        (Wait.FUTEX, r"futex|semtimedop"),
        (Wait.FILE_LOCK, r"locks?_lock_inode|flock|posix_lock"),
        (Wait.CHILD, r"^do_wait|wait_consider"),
        (Wait.FIFO, r"wait_for_partner|fifo_open"),
        (Wait.PIPE, r"pipe"),
        (Wait.CONNECTION, r"wait_woken|sk_wait|inet_csk|skb_|tcp_|unix_stream|sock_"),
        (Wait.POLL, r"poll_schedule|ep_poll|epoll|do_select"),
        (Wait.READ, r"folio_wait|filemap|nfs|fuse|io_schedule|request_wait_answer"),
        (Wait.WRITE, r"sync|jbd2|writeback|balance_dirty"),
    )
)


def kernel_wait(process: Process) -> Wait:
    """The wait of the main thread."""
    call, by_channel = process.system_call, wait_of_channel(process.wait_channel)
    wait = _WAIT_OF_CALL.get(call.name, Wait.UNKNOWN)
    if wait in (Wait.READ, Wait.WRITE):
        if call.target is Target.SOCKET:
            return Wait.CONNECTION
        if call.target is Target.CHILD_PIPE:
            return Wait.CHILD
        if call.target is Target.FIFO or by_channel is Wait.FIFO:
            return Wait.FIFO
        is_pipe = call.target in (Target.PIPE, Target.TERMINAL)
        return Wait.PIPE if is_pipe or (call.target is Target.UNKNOWN and by_channel is Wait.PIPE) else wait
    if wait is not Wait.UNKNOWN and not (wait in (Wait.SLEEPS, Wait.FUTEX) and process.state == "R"):
        return wait
    if by_channel is not Wait.UNKNOWN:
        return by_channel
    return Wait.COMPUTES if uses_a_processor(process) else Wait.UNKNOWN


def wait_of_channel(name: str) -> Wait:
    """The wait of a function of the kernel."""
    return next((wait for wait, functions in _WAIT_OF_CHANNEL if functions.search(name)), Wait.UNKNOWN)


def uses_a_processor(process: Process) -> bool:
    """It had a processor most of the time between two samples, or just now where there was only one."""
    if process.sampled_over > 0 and process.cpu >= BUSY * process.sampled_over:
        return True
    return process.state == "R" and not (process.sampled_over > 0 and process.cpu <= 0)
