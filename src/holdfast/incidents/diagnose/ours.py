"""The ranks of a launcher of ours, by its boards.

Does not cover: boards of another user; those are not read.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from ...fault_tolerance.board import BoardReader
from ...fault_tolerance.errors import BoardError
from ..gathering.kernel_file import names
from ..gathering.local_rank import LocalRank
from ..place import Place
from . import lookup
from .errors import NotDiagnosed
from .job import Job, how_many
from .launchers import Launcher, cycle_folder

BETWEEN = 3.0
"""Seconds for which a job that has no rank just now is waited for."""


def job_of_launcher(found: Launcher, why: str = "") -> Job:
    """The ranks of a launcher of ours. Raises `NotDiagnosed` where it has none now."""
    until = time.monotonic() + BETWEEN
    while True:
        folder = cycle_folder(found.boards)
        local, notes = _on_boards(folder)
        if local:
            break
        if time.monotonic() > until:
            raise NotDiagnosed(
                f"{why}ft_launcher, process {found.pid}, has no rank now: it is between two cycles, waits for other "
                "nodes, or its ranks have ended. Ask again, or see holdfast incidents"
            )
        time.sleep(0.05)
    place = Place.found(folder)
    cycle = int(os.path.basename(folder).partition("-")[2])
    place = place if place.node else Place(os.uname().nodename, cycle=cycle, world_size=len(local))
    local = [replace(rank, node=place.node) for rank in local]
    title = f"{why}ft_launcher, process {found.pid}, cycle {place.cycle}, {how_many(len(local), place)}"
    return Job(title, place, local, lookup.environment(local[0].pid), notes)


def _on_boards(folder: str) -> tuple[list[LocalRank], list[str]]:
    local, notes = [], []
    for name in sorted(names(folder)) if folder else ():
        if not name.endswith(".board"):
            continue
        path = os.path.join(folder, name)
        try:
            reader = BoardReader(path)
        except (BoardError, OSError) as error:
            notes.append(f"A rank is left out: {error}.")
            continue
        who = reader.snapshot().identity
        if who is None:
            reader.close()
            notes.append(f"Local rank {name.removesuffix('.board')} has not been started yet.")
        else:
            prefix = path.removesuffix(".board")
            local.append(LocalRank(who.rank, who.local_rank, who.pid, who.start_time, "", reader, prefix))
    return sorted(local, key=lambda rank: rank.rank), notes
