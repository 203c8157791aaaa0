"""Ranks that were sent SIGKILL for a hang and are still there: in a disk wait, a driver's teardown, a frozen cgroup.

Their cycle has failed all the same. Waiting for the end of the process would leave the job hanging for as long as the
disk does; so the cycle is stopped, which gives them their last ten seconds and names those that outlive even these.
"""

from __future__ import annotations

import signal
from typing import Any

from ..ranks.exits import RankExit
from ..ranks.group import RankGroup

AT_ONCE = 1.0  # seconds in which a process ordinarily ends by SIGKILL


class Lingering:
    """What of SIGKILLs the monitor has told; times are monotonic seconds."""

    def __init__(self) -> None:
        self._killed: dict[int, float] = {}  # by pid

    def hear(self, message: dict[str, Any], now: float) -> None:
        """The monitor has sent a signal."""
        if message["signal"] == signal.SIGKILL.name:
            self._killed.setdefault(message["pid"], now)

    def found(self, group: RankGroup, now: float) -> tuple[RankExit, ...]:
        """The ranks that should have ended by now, as if they had."""
        return tuple(
            RankExit(group.rank_of(local_rank), local_rank, pid, -signal.SIGKILL, now)
            for local_rank, pid in group.running.items()
            if now - self._killed.get(pid, now) > AT_ONCE
        )
