"""The launchers of this node, known by what they hold open: the lock on their boards, the journal of their job.

What always holds: nothing is opened in a run directory, whose disk may hang; the kernel's list of descriptors says
where they lead.

Does not cover: launchers of other users, unless this is root's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ...fault_tolerance.launcher.ranks.stale import OWNER, PREFIX
from ...fault_tolerance.processes import proc
from . import lookup

_JOURNAL = re.compile(r"\.?journal-.*\.jsonl(\.lock)?")


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher that runs."""

    pid: int
    boards: str
    """The folder of its boards."""
    run_dirs: tuple[str, ...]
    """Where it keeps its journal."""


def launcher(pid: int) -> Launcher | None:
    """The launcher with this pid, None where that is none."""
    files = lookup.open_files(pid)
    boards = [os.path.dirname(path) for path in files if os.path.basename(path) == OWNER]
    boards = [folder for folder in boards if os.path.basename(folder).startswith(PREFIX)]
    if not boards:
        return None
    journals = {os.path.dirname(path) for path in files if _JOURNAL.fullmatch(os.path.basename(path))}
    return Launcher(pid, boards[0], tuple(sorted(journals)))


def all_launchers() -> list[Launcher]:
    """Every one that this user may see, by pid."""
    stats = proc.all_stats()
    return [found for pid in sorted(stats) if (found := launcher(pid))]


def cycle_folder(boards: str) -> str:
    """The folder of the cycle that runs now; empty between two cycles."""
    try:
        names = [name for name in os.listdir(boards) if re.fullmatch(r"cycle-\d+", name)]
    except OSError:
        return ""
    newest = max(names, key=lambda name: int(name.partition("-")[2]), default="")
    return os.path.join(boards, newest) if newest else ""
