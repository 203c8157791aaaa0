"""The text on a failed cycle: who failed first and with what, who followed, and how the job ends.

The ranks are gone, so their log files may be read; a disk that does not answer is waited for `DISK` seconds.
Does not cover: failures on other nodes; their launchers report them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing import LogsDest

from holdfast import in_time

from . import console
from .control.records import CycleRecord, Kind
from .ranks import failures
from .ranks.boards import CycleBoards
from .ranks.failures import Failure

logger = logging.getLogger("holdfast.launcher")
DISK = 1.0
"""Seconds for the disk that has the ranks' logs."""
ONLY_FOLLOWED = ". No rank of this node had failed before"


@dataclass(frozen=True, slots=True)
class FailedCycle:
    """A cycle on node `node`; `record` is that of the next one, None where the node was asked to stop."""

    node: str
    cycle: int
    record: CycleRecord | None
    max_restarts: int


def log(cycle: FailedCycle, ordered: list[Failure]) -> None:
    """Log the block on these failures, the first one first; with its traceback where no restart follows.

    Before a restart one line is enough: the traceback stands above it, where the rank printed it.
    """
    record = cycle.record
    is_last = record is None or record.kind is Kind.END
    lines = failures.block(ordered, cycle.node, cycle.cycle, whole=is_last)
    if ordered[0].lost_connection:
        lines[0] += ONLY_FOLLOWED
    if (
        record is not None and record.node != cycle.node
    ):  # another node reported first; the line on it follows
        lines[0] = lines[0].replace("FAILED:", "ALSO FAILED:", 1)
    elif record is not None and is_last:
        used = f"{record.restarts} of {cycle.max_restarts}"
        lines.append(f"no restart left ({used} used): the job ends with exit code {record.exit_code}")
    console.say(lines, logging.ERROR if record is not None and is_last else logging.WARNING)


def in_full(found: list[Failure], boards: CycleBoards, files: LogsDest, log_dir: str) -> list[Failure]:
    """With what the ranks left in their log folder, if its disk answers."""

    def read(failure: Failure) -> Failure:
        local = failure.exit.local_rank
        error, stderr = files.error_files.get(local, ""), files.stderrs.get(local, "")
        return failures.in_full(failure, error, stderr, boards.stderr_path(local))

    try:
        return in_time.within(DISK, lambda: [read(failure) for failure in found])
    except in_time.TooLate:
        text = "what the ranks wrote cannot be read: the filesystem of %s has not answered for %g s"
        logger.warning(text, log_dir, DISK)
        return found
