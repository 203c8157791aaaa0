"""What is known of the failures of one cycle, while ranks still run: exits, kept exceptions, verdicts on hangs.

Nothing is read from a disk here: it may hang, and ranks run that have to be stopped.
Does not cover: failures on other nodes; their launchers tell them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from typing import Any

from ..ranks import failures
from ..ranks.boards import CycleBoards
from ..ranks.exits import RankExit
from ..ranks.failures import Failure
from ..ranks.group import RankGroup

UNHANDLED = 1  # the exit code of a Python that an exception ended


class Known:
    """The failures of one cycle; `verdicts` by local rank, as the monitor tells them."""

    def __init__(self, boards: CycleBoards, group: RankGroup) -> None:
        self._boards = boards
        self._group = group
        self.verdicts: dict[int, dict[str, Any]] = {}

    def failure(self, found: RankExit) -> Failure:
        """What is at hand on a rank that has ended."""
        verdict = self.verdicts.get(found.local_rank)
        return failures.at_hand(found, self._boards.error_path(found.local_rank), verdict)

    def until_now(self, exits: Iterable[RankExit]) -> list[Failure]:
        """These exits and the ranks that are about to end, as failures; the first comes first."""
        return failures.in_order([*map(self.failure, exits), *self._leaving()])

    def lacks_a_cause(self, exits: Iterable[RankExit]) -> bool:
        """Whether all that is known is that peers were lost, and a rank still runs that may have been the first.

        A hung rank is the cause, but how it ends is part of the story.
        """
        if not self._group.running:
            return False
        running = self._group.running
        return all(
            failure.lost_connection or (failure.hung is not None and failure.exit.local_rank in running)
            for failure in self.until_now(exits)
        )

    def _leaving(self) -> list[Failure]:
        """Running ranks whose exception is kept, or which the monitor is ending; their exits are as good as certain."""
        found = []
        for local_rank, pid in self._group.running.items():
            status = -signal.SIGKILL if local_rank in self.verdicts else UNHANDLED
            end = RankExit(self._group.rank_of(local_rank), local_rank, pid, status, time.monotonic())
            failure = self.failure(end)
            found += [failure] if failure.leaving or failure.hung else []
        return found
