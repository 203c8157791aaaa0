"""What the kernel says a rank's main thread does: it computes, sleeps, waits for a file, a peer, a child. Pure.

Always holds: the system call decides, the wait channel where no call is known. Both name what the thread waits in, not
why, so a verdict from them alone is never of high confidence.
Does not cover: which lock a futex is, and for whom a `poll` waits.
"""

from __future__ import annotations

import re

from ..evidence import Process

COMPUTES, SLEEPS, LOCKED, FILE_LOCK, CHILD = "computes", "sleeps", "futex", "file lock", "child"
NETWORK, POLLS, READS, WRITES, PIPE = "network", "polls", "reads", "writes", "pipe"
UNKNOWN = ""

BUSY = 0.5
"""Of the time between two samples: more processor time than this is a computation."""

_CALLS = {
    SLEEPS: "nanosleep clock_nanosleep pause rt_sigsuspend rt_sigtimedwait",
    LOCKED: "futex futex_waitv semop semtimedop",
    FILE_LOCK: "flock fcntl",
    CHILD: "wait4 waitid",
    NETWORK: "connect accept accept4 recvfrom recvmsg recvmmsg sendto sendmsg",
    POLLS: "poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2",
    READS: "read pread64 readv preadv open openat openat2 stat lstat newfstatat statx access faccessat getdents64 "
    "io_getevents statfs io_uring_enter",
    WRITES: "write pwrite64 writev pwritev fsync fdatasync sync syncfs msync close rename renameat renameat2 ftruncate "
    "fallocate mkdir mkdirat unlink unlinkat sendfile copy_file_range",
}
_BY_CALL = {name: kind for kind, names in _CALLS.items() for name in names.split()}
_BY_CHANNEL = (
    (SLEEPS, re.compile(r"nanosleep|do_sigtimedwait|sigsuspend")),
    (LOCKED, re.compile(r"futex|semtimedop")),
    (FILE_LOCK, re.compile(r"locks?_lock_inode|flock|posix_lock")),
    (CHILD, re.compile(r"^do_wait|wait_consider")),
    (PIPE, re.compile(r"pipe")),
    (NETWORK, re.compile(r"wait_woken|sk_wait|inet_csk|skb_|tcp_|unix_stream|sock_")),
    (POLLS, re.compile(r"poll_schedule|ep_poll|epoll|do_select")),
    (
        READS,
        re.compile(r"wait_for_partner|fifo_open|folio_wait|filemap|nfs|fuse|io_schedule|request_wait_answer"),
    ),
    (WRITES, re.compile(r"sync|jbd2|writeback|balance_dirty")),
)


def call_of(process: Process) -> tuple[str, str]:
    """The system call's name, and what stands behind it: `read`, `/data/part-7`."""
    name, _, target = process.system_call.partition(" ")
    return name, target.strip()


def computing(process: Process) -> bool:
    """Whether it has the processor: most of the time between two samples, or just now where there was one only."""
    if process.sampled_over > 0 and process.cpu >= BUSY * process.sampled_over:
        return True
    return process.state == "R" and not (process.sampled_over > 0 and process.cpu <= 0)


def main_thread_ran(process: Process) -> bool:
    """Whether the main thread, or where threads are not known any, ran between two samples: torch's own threads wake
    up all the time (gloo's a hundred times a second)."""
    if process.threads:
        return process.threads[0].cpu > 0 or process.threads[0].switches > 0
    return process.cpu > 0 or process.switches > 0


def idle(process: Process) -> bool:
    """Whether its main thread did not run between two samples."""
    return process.sampled_over > 0 and not main_thread_ran(process)


def waits_in(process: Process) -> str:
    """One of the words above."""
    name, target = call_of(process)
    kind = _BY_CALL.get(name, UNKNOWN)
    if kind in (READS, WRITES):
        return _behind(target, process.wait_channel) or kind
    if kind and not (kind in (SLEEPS, LOCKED) and process.state == "R"):
        return kind
    for word, channel in _BY_CHANNEL:
        if channel.search(process.wait_channel):
            return word
    return COMPUTES if computing(process) else UNKNOWN


def _behind(target: str, channel: str) -> str:
    """A read of a pipe or a connection is no read of a file."""
    if target.startswith("socket:"):
        return NETWORK
    if "shared with pid" in target:
        return CHILD
    if target.startswith(("pipe:", "/dev/tty", "/dev/pts", "/dev/stdin")) or (
        not target and "pipe" in channel
    ):
        return PIPE
    return ""
