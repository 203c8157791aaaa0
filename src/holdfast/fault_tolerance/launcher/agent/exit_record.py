"""How a rank ended, as the journal keeps it: status, meaning, and the exception if one is known.

Does not cover: torch's own error files, which only tell more about the same exception.
"""

from __future__ import annotations

from holdfast.journal.writer import Journal

from ..ranks import failures
from ..ranks.boards import CycleBoards
from ..ranks.exits import RankExit


def record_exit(
    journal: Journal, boards: CycleBoards, found: RankExit, cycle: int, *, stopped: bool = False
) -> None:
    """Into the journal; `stopped` when the rank only did what the launcher had asked for."""
    error = (
        failures.kept(boards.error_path(found.local_rank), found) if found.status and not stopped else None
    )
    journal.record(
        "rank_exit",
        cycle=cycle,
        rank=found.rank,
        pid=found.pid,
        exitcode=found.status if found.status >= 0 else None,
        signal=found.signal_name,
        meaning="stopped by the launcher" if stopped else found.meaning,
        **({"error": error} if error else {}),
    )
