"""What jobs of this user left on this machine. Looked at only: removing is the next launcher's and the user's.

Does not cover: jobs in other containers, whose processes cannot be seen from here.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable

from ...fault_tolerance.launcher.ranks.boards import TMPFS
from ...fault_tolerance.launcher.ranks.stale import OWNER, PREFIX, is_stale
from ...fault_tolerance.processes import proc, sweep
from ...journal.run_dir import default_folders
from ..judgements.leftovers import Orphan, Runs

LAUNCHER = b"HOLDFAST_LAUNCHER_PID="
BOARD = b"FT_RANK_MONITOR_IPC_SOCKET="
MOST_FILES = 20000
"""After so many the size of run directories is a lower bound; the look has to end."""


def boards() -> tuple[list[str], int]:
    """The board directories of dead launchers of this user, and how many belong to living ones."""
    dead, alive = [], 0
    for base in dict.fromkeys((TMPFS, tempfile.gettempdir())):
        for path in _directories(base):
            if is_stale(path):
                dead.append(path)
            elif os.path.exists(os.path.join(path, OWNER)) and os.lstat(path).st_uid == os.geteuid():
                alive += 1
    return dead, alive


def orphans() -> list[Orphan]:
    """Processes that a launcher started, or a rank of it, and that outlived it. This process's own job is none."""
    stats = proc.all_stats()
    spared, pid = set(), os.getpid()
    while pid in stats:
        spared.add(pid)
        pid = stats[pid].ppid
    found = []
    for pid in sorted(stats.keys() - spared):
        launcher, board = _origin(pid)
        if launcher and not sweep.ends(stats[pid]) and not _alive(launcher, board):
            found.append(Orphan(pid, launcher, _command(pid)))
    return found


def runs(folders: Iterable[str] | None = None) -> Runs:
    """The run directories in the default folders."""
    places = [each for each in (default_folders() if folders is None else folders) if os.path.isdir(each)]
    paths = [
        entry.path for place in places for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)
    ]
    ages = [time.time() - os.stat(path).st_mtime for path in paths]
    return Runs(places, len(paths), _size(paths), max(ages, default=None))


def _size(paths: Iterable[str]) -> int:
    total = seen = 0
    for path in paths:
        for folder, _, names in os.walk(path):
            for name in names:
                seen += 1
                if seen > MOST_FILES:
                    return total
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue
    return total


def _directories(base: str) -> list[str]:
    try:
        with os.scandir(base) as entries:
            return sorted(each.path for each in entries if each.name.startswith(PREFIX))
    except OSError:
        return []


def _origin(pid: int) -> tuple[int, str]:
    """The launcher whose environment the process has, and the board there; (0, "") for everybody else."""
    if not proc.has_environment(pid, LAUNCHER):
        return 0, ""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return 0, ""
    values = {name: _value(words, name) for name in (LAUNCHER, BOARD)}
    return (int(values[LAUNCHER]) if values[LAUNCHER].isdecimal() else 0), values[BOARD]


def _value(words: list[bytes], name: bytes) -> str:
    return next((os.fsdecode(each[len(name) :]) for each in words if each.startswith(name)), "")


def _alive(launcher: int, board: str) -> bool:
    """By the lock in its board directory where that is still there: a number may be somebody else's by now."""
    directory = os.path.dirname(os.path.dirname(board))
    if board and os.path.exists(os.path.join(directory, OWNER)):
        return not is_stale(directory)
    return not sweep.ends(proc.stat(launcher))


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\0").replace(b"\0", b" "))
    except OSError:
        return "?"
