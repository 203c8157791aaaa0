"""Which runs a folder holds: the sub-folders with a journal in them, newest first.

What always holds: a run that cannot be read is listed all the same, and says why.

Does not cover: runs further below, but for those that shared a run directory (`claim`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..fault_tolerance.errors import HoldfastError
from .claim import ALSO
from .incident_list import incidents
from .reader import JournalUnreadable, journal_files, read_run
from .run_dir import default_folders


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    path: str
    begun: float | None
    """When its first event was told, unix seconds; None when none can be read."""
    incidents: int | None
    """How many; None when its journal cannot be read."""
    problem: str = ""
    """Why it cannot."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def runs_in(folders: Iterable[str]) -> list[Run]:
    """The runs in these folders, newest first; each journal is read. A folder that cannot be listed has none."""
    found = [_run(path) for folder in folders for path in _run_dirs(folder)]
    return sorted(found, key=lambda run: run.begun or 0.0, reverse=True)


def default_runs() -> list[Run]:
    """The runs for which no directory was chosen, newest first, at least one. Raises `JournalUnreadable`."""
    folders = default_folders()
    runs = runs_in(folders)
    if not runs:
        places = " or ".join(folders)
        raise JournalUnreadable(f"no run in {places}. Name a job's run directory (ft_launcher --ft-run-dir).")
    return runs


def holds_journal(folder: str) -> bool:
    """Whether this is a run directory. Never raises."""
    try:
        return bool(journal_files(folder))
    except JournalUnreadable:
        return False


def beside(run_dir: str) -> list[str]:
    """The run directories of other jobs that ran in this one at the same time."""
    return [
        path for path in _folders(run_dir) if os.path.basename(path).startswith(ALSO) and holds_journal(path)
    ]


def _run_dirs(folder: str) -> Iterator[str]:
    for path in _folders(folder):
        if holds_journal(path):
            yield path
        yield from beside(path)


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())
    except OSError:
        return []


def _run(path: str) -> Run:
    try:
        events = read_run(path)
    except HoldfastError as error:
        return Run(path, None, None, str(error))
    return Run(path, min((event.t for event in events), default=None), len(incidents(events)))
