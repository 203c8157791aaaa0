"""The launcher as a child subreaper: whatever a rank leaves behind becomes the launcher's child.

So that it can be found and ended before the rank's successor starts, and reaped when it ends by itself.
Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import ctypes
import os

from ...processes import proc, sweep

PR_SET_CHILD_SUBREAPER = 36
GRACE = 0.5  # seconds between SIGTERM and SIGKILL for what a dead rank left behind
LIMIT = 10.0

# Pid -> start time of what ran below this process before it was a launcher, because a shell started something in
# the background and then became the launcher by exec. That belongs to no rank. One process is one launcher.
_strangers: dict[int, int] = {}


def adopt() -> None:
    """From now on orphans below this process become its children, not init's; what is there already is a stranger."""
    _strangers.update(sweep.below({os.getpid()}, set()))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(own: set[int]) -> None:
    """Collect adopted children that have ended; `own` pids are left to those who wait for them."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def left(spared: set[int]) -> dict[int, int]:
    """Pid -> start time of everything that runs below this process, except `spared` and strangers."""
    spared = spared - {0}  # no process: below pid 0 is the whole machine
    reap(spared)
    strangers = {pid for pid, started in _strangers.items() if proc.start_time(pid) == started}
    return sweep.below({os.getpid()}, spared | strangers)


def end_all(spared: set[int]) -> tuple[set[int], set[int]]:
    """End everything below this process except `spared` and strangers; returns (signalled pids, those still there)."""
    return sweep.end_all(lambda: left(spared), GRACE, LIMIT)
