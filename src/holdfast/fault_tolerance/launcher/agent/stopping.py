"""Stopping the ranks of this node for a restart, or because the job is over.

What always holds: after :meth:`Stopping.for_sure` none of them runs, whatever fails on the way.
Does not cover: a process that even SIGKILL cannot end; it is named. Letting ranks save first (:mod:`.preemption`).
"""

from __future__ import annotations

import logging
import signal

from ...monitor.control import IDLE, STOPPING
from ..inbox import Signalled
from ..ranks import orphans
from ..ranks.exits import obeyed
from ..ranks.group import RankGroup, describe_stuck
from .exit_record import record_exit
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")
SAVING = 30.0  # seconds for a rank that may be saving: with an open `checkpointing` section, or preempted


class Stopping:
    """How the agent stops its ranks."""

    def __init__(self, agent: Surroundings) -> None:
        self._agent = agent

    def stop(self, reason: str) -> str:
        """Stop the local ranks and sweep what they left; returns who could not be ended ('' for nobody)."""
        agent = self._agent
        if agent.group is None:
            return ""
        agent.control.enter(STOPPING, agent.job.record.cycle)
        agent.journal.record("stop", cycle=agent.job.record.cycle, reason=reason)
        stuck = self._end(agent.group)
        agent.group.close()
        agent.group = None
        agent.end_helpers()
        agent.control.enter(IDLE, agent.job.record.cycle)
        return stuck

    def for_sure(self) -> None:
        """Stop the ranks, by force if what does it in good order fails."""
        try:
            self.stop("the launcher ends")
        except Exception as error:
            logger.error("the ranks could not be stopped in good order (%r): they are killed", error)
            orphans.end_all(self._agent.spared)
            self._agent.group = None

    def _end(self, group: RankGroup) -> str:
        """SIGTERM, patience, SIGKILL, then the sweep; returns who outlived all that ('' for nobody)."""
        agent = self._agent
        stuck = group.stop(self._grace, self._impatient)
        self.record_exits(group, signal.SIGTERM)
        swept, left = orphans.end_all({*agent.spared, *stuck})
        if swept:
            agent.journal.record("swept", pids=sorted(swept))
        left -= set(stuck)
        if left:
            logger.warning(
                "processes that the ranks left behind could not be ended: %s", describe_stuck(sorted(left))
            )
        return describe_stuck(stuck)

    def record_exits(self, group: RankGroup, number: int) -> None:
        """Into the journal: how ranks ended since the last look, `number` having been sent to them."""
        for found in group.fresh_exits():
            stopped = found.local_rank in group.killed or obeyed(found, number)
            cycle = self._agent.job.record.cycle
            record_exit(self._agent.journal, self._agent.boards, found, cycle, stopped=stopped)

    def _grace(self, local_rank: int) -> float:
        patience = self._agent.rules.stop_timeout
        return max(patience, SAVING) if self.is_saving(local_rank) else patience

    def is_saving(self, local_rank: int) -> bool:
        """Whether the rank says that it saves a checkpoint."""
        board = self._agent.boards.snapshots().get(local_rank)
        return board is not None and any(section.name == "checkpointing" for section in board.open_sections)

    @staticmethod
    def _impatient(events: list[object]) -> bool:
        """Ctrl-C makes a stop immediate."""
        return any(isinstance(event, Signalled) and event.number == signal.SIGINT for event in events)
