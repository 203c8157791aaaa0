"""Ranks that somebody else has started, by their environments.

Does not cover: which processes those are (`ranks`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...fault_tolerance.board import BoardReader
from ...fault_tolerance.errors import BoardError
from ...fault_tolerance.processes import proc
from ..gathering.local_rank import LocalRank
from ..place import Place
from . import lookup, ranks
from .job import Job, how_many


def job_of_others(local: ranks.Environments, stats: Mapping[int, proc.Stat], why: str) -> Job:
    """Ranks of another launcher, or of nobody's."""
    first = min(local, key=lambda pid: ranks.number(local[pid], ranks.OTHERS_NUMBERS) or 0)
    environment = local[first]
    told = {
        name: ranks.number(environment, (name,))
        for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    }
    place = Place(
        node=os.uname().nodename,
        node_rank=told["GROUP_RANK"] or 0,
        nodes=told["GROUP_WORLD_SIZE"] or 1,
        world_size=told["WORLD_SIZE"] or len(local),
        run_id=environment.get("TORCHELASTIC_RUN_ID", ""),
        cycle=told["TORCHELASTIC_RESTART_COUNT"] or 0,
    )
    found = [_rank(pid, each, stats, place.node) for pid, each in local.items()]
    parent = stats[first].ppid
    title = f"{why}{how_many(len(found), place)}, started by process {parent} ({lookup.command(parent) or 'unknown'})"
    return Job(title, place, sorted(found, key=lambda rank: (rank.rank, rank.pid)), environment)


def _rank(pid: int, environment: Mapping[str, str], stats: Mapping[int, proc.Stat], node: str) -> LocalRank:
    number = ranks.number(environment, ranks.OTHERS_NUMBERS) or 0
    local = ranks.number(environment, (ranks.LOCAL_RANK, "OMPI_COMM_WORLD_LOCAL_RANK"))
    board, prefix = _own_board(ranks.board_of(environment), pid, stats)
    start = stats[pid].start_time
    return LocalRank(number, number if local is None else local, pid, start, node, board, prefix)


def _own_board(path: str, pid: int, stats: Mapping[int, proc.Stat]) -> tuple[BoardReader | None, str]:
    """The rank's board where it was given one that is its own now (`RankMonitorServer`)."""
    if not path:
        return None, ""
    real = os.path.realpath(path)
    try:
        reader = BoardReader(real)
    except (BoardError, OSError):
        return None, ""
    who = reader.snapshot().identity
    if who and who.pid in {pid, *proc.descendants({pid}, dict(stats))}:
        return reader, real.removesuffix(".board")
    reader.close()
    return None, ""
