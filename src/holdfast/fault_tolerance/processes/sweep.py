"""Ending everything that a dead rank left running: data-loader workers, checkpoint writers, setsid children.

Three ways of finding them, because each misses some: the process tree (misses those whose parent died and whom
init adopted), the session of the rank (misses those who made their own) and the environment they inherited (misses
those who cleared it). The launcher is a child subreaper, so with it alive the tree alone misses nobody.
Does not cover: a process that left the rank's session and cleared its environment, once the launcher has died.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from . import proc
from .pidfd import send_verified

POLL = 0.01


def ends(found: proc.Stat | None) -> bool:
    """Whether the process has ended (a zombie has: only its parent's wait is missing)."""
    return found is None or found.state in "ZX"


def below(roots: set[int], spared: set[int]) -> dict[int, int]:
    """Pid -> start time of everything running below `roots`; `spared` pids and what is below them is left out."""
    stats = proc.all_stats()
    spare = spared | proc.descendants(spared, stats)
    return {
        pid: stats[pid].start_time for pid in proc.descendants(roots, stats) - spare if not ends(stats[pid])
    }


def in_sessions(leaders: Mapping[int, int], spared: set[int]) -> dict[int, int]:
    """Pid -> start time of every process in the session of one of `leaders` (pid -> start time), dead or alive.

    The kernel gives a leader's pid to nobody else as long as its session has a member; a process that has the pid
    and another start time says that the session is over.
    """
    stats = proc.all_stats()
    over = {pid for pid, started in leaders.items() if pid in stats and stats[pid].start_time != started}
    sessions = leaders.keys() - over
    return {
        pid: found.start_time
        for pid, found in stats.items()
        if found.session in sessions and pid not in spared and not ends(found)
    }


def marked(marker: bytes, spared: set[int]) -> dict[int, int]:
    """Pid -> start time of every process that was started with `marker` in its environment."""
    spare = spared | {os.getpid()}
    return {
        pid: found.start_time
        for pid, found in proc.all_stats().items()
        if pid not in spare and not ends(found) and proc.has_environment(pid, marker)
    }


def end_all(find: Callable[[], dict[int, int]], grace: float, limit: float) -> tuple[set[int], set[int]]:
    """Ask with SIGTERM, after `grace` seconds insist with SIGKILL, look again until nobody is found.

    Returns the pids that were signalled and those still there after `limit` seconds. `find` is called anew each
    time, since what is being ended may still start others.
    """
    began = time.monotonic()
    asked: set[int] = set()
    while True:
        alive = find()
        elapsed = time.monotonic() - began
        if not alive or elapsed > limit:
            return asked, set(alive)
        for pid, started in alive.items():
            if elapsed >= grace:
                send_verified(pid, started, signal.SIGKILL)
            elif pid not in asked:
                send_verified(pid, started, signal.SIGTERM)
                send_verified(pid, started, signal.SIGCONT)  # a stopped process would not see the SIGTERM
            asked.add(pid)
        time.sleep(POLL)
