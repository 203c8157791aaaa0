"""What jobs of this user left on this machine. Looked at only: removing is the next launcher's and the user's.

Does not cover: jobs in other containers, whose processes cannot be seen from here.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable

from ...fault_tolerance.launcher.ranks.boards import TMPFS
from ...fault_tolerance.launcher.ranks.stale import OWNER, PREFIX, is_stale
from ...fault_tolerance.processes import proc, sweep
from ...journal.run_dir import default_folders
from ...journal.run_list import holds_journal
from ..judgements.leftovers import Orphan, Runs

LAUNCHERS = ("ft_launcher", "fault_tolerance.launcher")
"""What the command line of a launcher has; all that its ranks leave stays below it."""
ZYGOTE = re.compile(r"holdfast: (?:zygote|standby) of launcher (\d+)")
BOARD = b"FT_RANK_MONITOR_IPC_SOCKET="
MOST_FILES = 20000
"""After so many the size of run directories is a lower bound; the look has to end."""


def boards(bases: Iterable[str] | None = None) -> tuple[list[str], int]:
    """The board directories of dead launchers of this user, and how many belong to living ones."""
    dead, alive = [], 0
    for base in dict.fromkeys((TMPFS, tempfile.gettempdir()) if bases is None else bases):
        for path in _directories(base):
            if is_stale(path):
                dead.append(path)
            elif os.path.exists(os.path.join(path, OWNER)) and os.lstat(path).st_uid == os.geteuid():
                alive += 1
    return dead, alive


def orphans() -> list[Orphan]:
    """Processes that were started by a rank, or are one, and outlived their launcher. This one's own job is none."""
    stats = proc.all_stats()
    spared = {os.getpid(), *_ancestors(os.getpid(), stats)}
    found = []
    for pid in sorted(stats.keys() - spared):
        if sweep.ends(stats[pid]):
            continue
        command, directory = _command(pid), _board_directory(pid)
        waits = ZYGOTE.match(command)
        if (directory and not _alive(directory, _ancestors(pid, stats))) or (
            waits and int(waits[1]) not in _ancestors(pid, stats)
        ):
            found.append(Orphan(pid, command))
    return found


def runs(folders: Iterable[str] | None = None) -> Runs:
    """The run directories in the default folders."""
    places = [each for each in (default_folders() if folders is None else folders) if os.path.isdir(each)]
    inside = [entry for place in places for entry in os.scandir(place)]
    paths = [each.path for each in inside if each.is_dir(follow_symlinks=False) and holds_journal(each.path)]
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


def _board_directory(pid: int) -> str:
    """Where the boards of the job are that the process was started in; empty for everybody else."""
    if not proc.has_environment(pid, BOARD):
        return ""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    board = next((os.fsdecode(each[len(BOARD) :]) for each in words if each.startswith(BOARD)), "")
    directory, cycle = os.path.split(os.path.dirname(board))
    ours = cycle.startswith("cycle-") and os.path.basename(directory).startswith(PREFIX)
    return directory if ours else ""  # else it is the board of a `RankMonitorServer`


def _alive(directory: str, ancestors: list[int]) -> bool:
    """By the lock on its directory; where somebody has removed that, by what the process runs below."""
    if os.path.exists(os.path.join(directory, OWNER)):
        return not is_stale(directory)
    return any(name in _command(pid) for pid in ancestors for name in LAUNCHERS)


def _ancestors(pid: int, stats: dict[int, proc.Stat]) -> list[int]:
    found = []
    while pid in stats and (pid := stats[pid].ppid) in stats and pid not in found:
        found.append(pid)
    return found


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\0").replace(b"\0", b" "))
    except OSError:
        return "?"
