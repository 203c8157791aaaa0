"""The times of counted steps, at the end of each cycle: into the journal, and where all ranks of this node have
succeeded, as learned limits into the run directory, in the documented form.

No limit is put in force by it: that is what the user sets one for. What always holds: nothing here raises or waits
for a disk longer than `PATIENCE`. Does not cover: the longest over all nodes; each has a file of its own.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from holdfast import in_time
from holdfast.learned_limits import state_file

from ... import environment, learned_state
from ...limits import HeartbeatTimeouts
from ...step_times import StepTimes, step_times
from ..ranks.group import RankGroup
from .harmless import harmless
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")
PATIENCE = 1.0  # seconds for the disk that has the run directory
PART = "heartbeat"


def tell(around: Surroundings, group: RankGroup, cycle: int) -> None:
    """The cycle is over, and its boards are still there."""
    with harmless("the record of the steps' times"):
        boards, exits = around.boards.snapshots(), group.exits
        times = step_times((boards[rank], exits[rank].at) for rank in boards if rank in exits)
        if times is None:
            return
        around.journal.record(
            "counted_steps",
            cycle=cycle,
            ranks=times.ranks,
            steps=times.steps,
            first=round(times.first, 3),
            longest=round(times.longest, 3),
        )
        if len(exits) == times.ranks and not any(end.status for end in exits.values()):
            _keep(_file(around.journal.path), times, around.rules.safety_factor)


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
