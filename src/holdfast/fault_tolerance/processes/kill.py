"""Signals that reach exactly the process that was meant, and the end of everything that a dead rank left running.

A pid alone identifies no process, because pids are recycled. Every signal goes through a pidfd after the process
behind it was compared with the start time that was recorded when it was started.

A dead rank leaves data-loader workers, checkpoint writers and children with sessions of their own. Three ways of
finding them, because each misses some: the process tree (misses those whose parent died and that init adopted), the
session of the rank (misses those who made their own) and the environment they inherited (misses those who cleared
it). The launcher is a child subreaper, so while it runs the tree alone misses none.

Two kinds of helpers remove shared memory when its last user has ended: Python's resource tracker, and torch's
shared-memory manager, which takes two more seconds. Then they end by themselves; what a killed one has not removed
stays in /dev/shm.

Does not cover: a process that shares the pid *and* the clock tick of its start with the one meant; a process that
left the rank's session and cleared its environment, once the launcher has died; helpers of other kinds; a manager
that fails because a worker was ended before it could read the manager's answer, and leaves its files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from . import proc

POLL = 0.01
HELPERS = 5.0  # seconds that helpers have once all else has ended
MANAGER = "torch_shm_manag"  # the first 15 bytes of its name; source: torch's libshm
TRACKER = b".resource_tracker import main"  # in its command line; source: multiprocessing; joblib
TRACKER_IGNORES = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1


@contextmanager
def verified(pid: int, start_time: int) -> Iterator[int | None]:
    """A pidfd for exactly this process, or None when it is gone or the pid now belongs to another one."""
    handle = None
    with suppress(OSError):
        handle = open_pidfd(pid, start_time)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def open_pidfd(pid: int, start_time: int) -> int | None:
    """A pidfd for exactly this process; None when it is gone. OSError where the descriptor cannot be made."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Checked after the handle exists: from here on the handle cannot come to mean another process.
    if proc.start_time(pid) == start_time:
        return handle
    os.close(handle)
    return None


def send(handle: int, number: int) -> bool:
    """Signal the process behind a pidfd; False when it has already ended or is another user's by now (set-uid)."""
    try:
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_verified(pid: int, start_time: int, number: int) -> bool:
    """Signal the process that has this pid *and* this start time; False when there is no such process."""
    with verified(pid, start_time) as handle:
        return handle is not None and send(handle, number)


def below(roots: set[int], spared: set[int]) -> dict[int, int]:
    """Pid -> start time of everything running below `roots`; `spared` pids and what is below them is left out."""
    stats = proc.all_stats()
    spare = spared | proc.descendants(spared, stats)
    return {
        pid: stats[pid].start_time for pid in proc.descendants(roots, stats) - spare if stats[pid].is_running
    }


def in_sessions(leaders: Mapping[int, int], spared: set[int]) -> dict[int, int]:
    """Pid -> start time of every process in the session of one of `leaders` (pid -> start time), dead or alive.

    The kernel gives a leader's pid to no other process as long as its session has a member; a process that has the pid
    and another start time means that the session is over.
    """
    stats = proc.all_stats()
    over = {pid for pid, started in leaders.items() if pid in stats and stats[pid].start_time != started}
    sessions = leaders.keys() - over
    return {
        pid: found.start_time
        for pid, found in stats.items()
        if found.session in sessions and pid not in spared and found.is_running
    }


def marked(marker: bytes, spared: set[int]) -> dict[int, int]:
    """Pid -> start time of every process that was started with `marker` in its environment."""
    spare = spared | {os.getpid()}
    return {
        pid: found.start_time
        for pid, found in proc.all_stats().items()
        if pid not in spare and found.is_running and proc.has_environment(pid, marker)
    }


def managers(pids: Iterable[int]) -> set[int]:
    """Those of these processes that are torch's shared-memory managers."""
    return {pid for pid in pids if (found := proc.stat(pid)) is not None and found.name == MANAGER}


def _is_tracker(pid: int) -> bool:
    """Whether it is Python's resource tracker. The command line is read of few processes: such a read waits while the
    process holds its memory map for writing."""
    ignored = int(proc.table(f"/proc/{pid}/status").get("SigIgn", "0"), 16)
    is_possible = ignored & TRACKER_IGNORES == TRACKER_IGNORES
    return is_possible and TRACKER in proc.one_read(f"/proc/{pid}/cmdline")


def end_all(
    find: Callable[[], dict[int, int]], grace: float, limit: float, helpers: float = HELPERS
) -> tuple[set[int], set[int]]:
    """Send SIGTERM, after `grace` seconds SIGKILL, until `find` finds no process.

    Helpers that remove shared memory are left alone until all else has ended, and for `helpers` seconds more. Returns
    the pids that were signalled and those still there after `limit` seconds. `find` is called anew each time, since
    what is being ended may still start others.
    """
    began = last = time.monotonic()
    asked: set[int] = set()
    while True:
        alive, now = find(), time.monotonic()
        elapsed = now - began
        if not alive or elapsed > limit:
            return asked, set(alive)
        helping = managers(alive) | {pid for pid in alive if _is_tracker(pid)}
        if alive.keys() - helping:
            last = now
        for pid, started in alive.items():
            is_helping = pid in helping and now - last < helpers
            if elapsed >= grace and not is_helping:
                send_verified(pid, started, signal.SIGKILL)
            elif pid not in asked:
                if not is_helping:
                    send_verified(pid, started, signal.SIGTERM)
                send_verified(pid, started, signal.SIGCONT)  # a stopped process would not see the SIGTERM
            asked.add(pid)
        time.sleep(POLL)
