"""The durations of counted steps, at the end of each cycle: into the journal, and where all ranks of this node have
succeeded, as learned timeouts into the run directory, in the documented form.

No timeout is put in force by it: the user sets one for that. What always holds: nothing here waits for a disk longer
than `PATIENCE`. Does not cover: the longest over all nodes; each has a file of its own.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from holdfast import in_time
from holdfast.journal.writer import Journal
from holdfast.learned_limits import state_file

from .. import environment, learned_state
from ..limits import HeartbeatTimeouts
from ..step_times import StepTimes, step_times
from .ranks.boards import CycleBoards
from .ranks.group import RankGroup

logger = logging.getLogger("holdfast.launcher")
PATIENCE = 1.0  # seconds for the disk that has the run directory
PART = "heartbeat"


def record_steps(
    journal: Journal, boards: CycleBoards, group: RankGroup, cycle: int, safety_factor: float
) -> None:
    """The cycle is over, and its boards still exist."""
    snapshots, exits = boards.snapshots(), group.exits
    times = step_times((snapshots[rank], exits[rank].at) for rank in snapshots if rank in exits)
    if times is None:
        return
    journal.record(
        "counted_steps",
        cycle=cycle,
        ranks=times.ranks,
        steps=times.steps,
        first=round(times.first, 3),
        longest=round(times.longest, 3),
    )
    if len(exits) == times.ranks and not any(end.status for end in exits.values()):
        _keep(_file(journal.path), times, safety_factor)


def _file(journal: str) -> Path:
    folder, name = os.path.split(journal)
    node = name.removeprefix("journal-").removesuffix(".jsonl")
    return Path(folder) / f"learned-limits-{node}.json"


def _keep(path: Path, times: StepTimes, factor: float) -> None:
    def write() -> None:
        learned = times.learned(_before(path), factor, environment.floors())
        state_file.write(path, learned_state.to_state(learned, None))

    try:
        in_time.within(PATIENCE, write)
    except (in_time.TooLate, OSError) as error:
        logger.info("the learned limits are not kept in %s: %r", path, error)


def _before(path: Path) -> HeartbeatTimeouts | None:
    try:
        text = state_file.read(path)
        return learned_state.from_state(state_file.parse(text, PART))[0] if text else None
    except state_file.Damaged:
        return None
