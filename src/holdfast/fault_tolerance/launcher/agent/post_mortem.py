"""Why a cycle failed on this node: who failed first, with what, and who merely followed.

The first to fail need not be the first to end: a rank whose unhandled exception is kept has failed at that moment,
though its interpreter may take seconds to leave, and a peer that lost its connection may be gone before.
Does not cover: failures on other nodes; their launchers tell them.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import replace

from holdfast import in_time

from .. import console
from ..nodes.job import SingleNodeJob
from ..nodes.records import END, Record
from ..ranks import failures
from ..ranks.exits import RankExit, obeyed, of_failures
from ..ranks.failures import Failure
from ..ranks.group import RankGroup
from .cycle_watch import CycleWatch
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")
LOST = ". No rank of this node had failed before"  # the cause is elsewhere, or the network itself
PATIENCE = 1.0  # seconds for the disk that has the ranks' logs


class PostMortem:
    """Reads what failed ranks left behind, and says it."""

    def __init__(self, agent: Surroundings) -> None:
        self._agent = agent
        self.ordered: list[Failure] = []
        """The failures of the cycle that was explained last, the first to fail first."""

    def of(self, group: RankGroup, watch: CycleWatch) -> list[Failure]:
        """The failures of ranks that have all ended, without those that merely obeyed; the first comes first."""
        ended = [watch.known.failure(end) for end in group.exits.values()]
        return failures.in_order(each for each in ended if each.hung or _by_itself(each, group))

    def first_words(self, first: Failure) -> str:
        """One line on a failure: `rank 1 (node a, pid 7): killed by SIGKILL …`."""
        who = f"rank {first.exit.rank} (node {self._agent.node}, pid {first.exit.pid})"
        return f"{who}: {first.meaning}{LOST if first.lost_connection else ''}"

    def explain(self, found: list[Failure], group: RankGroup, watch: CycleWatch, counts: Record) -> Record:
        """Who failed first and who followed, all ranks being stopped by now; with the traceback at the job's end.

        `found` are the failures before they were stopped. Returns `counts`, with the exit code as it is known by now
        where no other node has acted on it.

        Before a restart one line is enough: the traceback stands above it, where the rank printed it.
        """
        agent, last = self._agent, counts.kind == END
        known = {failure.exit.local_rank for failure in found}
        later = [
            watch.known.failure(end) for local_rank, end in group.exits.items() if local_rank not in known
        ]
        followed = [each for each in later if _by_itself(each, group)]
        ordered = self._in_full(failures.in_order([*(_ended(each, group) for each in found), *followed]))
        self.ordered = ordered
        self._correct(found[0], ordered[0])
        if last and isinstance(agent.job, SingleNodeJob):
            counts = replace(counts, exit_code=of_failures(each.exit for each in failures.causes(ordered)))
        lines = failures.block(ordered, agent.node, agent.job.record.cycle, whole=last)
        if ordered[0].lost_connection:
            lines[0] += LOST
        if counts.node != agent.node:  # another node was first to say so; the line on it follows
            lines[0] = lines[0].replace("FAILED:", "ALSO FAILED:", 1)
        if last and counts.node == agent.node:
            spent = f"{counts.restarts} of {agent.rules.max_restarts}"
            lines.append(f"no restart left ({spent} used): the job ends with exit code {counts.exit_code}")
        console.say(lines, logging.ERROR if last else logging.WARNING)
        return counts

    def _correct(self, told: Failure, first: Failure) -> None:
        """Into the journal, when a rank that took long to end turns out to be the one that the others lost."""
        if first.exit.local_rank != told.exit.local_rank:
            who = {"rank": first.exit.rank, "pid": first.exit.pid}
            cycle, why = self._agent.job.record.cycle, self.first_words(first)
            self._agent.journal.record("cause", cycle=cycle, **who, reason=why)

    def say_failed(self, found: list[RankExit]) -> None:
        """The block on ranks that failed while the job was being stopped."""
        paths = self._agent.boards.error_path
        known = [failures.at_hand(end, paths(end.local_rank)) for end in found]
        ordered = self._in_full(failures.in_order(known))
        console.say(failures.block(ordered, self._agent.node, self._agent.job.record.cycle, whole=True))

    def _in_full(self, known: list[Failure]) -> list[Failure]:
        """With what the ranks left in their log folder, if its disk answers."""
        try:
            return in_time.within(PATIENCE, lambda: [self._from_disk(failure) for failure in known])
        except in_time.TooLate:
            logger.warning(
                "what the ranks wrote cannot be read: the filesystem of %s has not answered for %g s",
                self._agent.logs.root_log_dir,
                PATIENCE,
            )
            return known

    def _from_disk(self, failure: Failure) -> Failure:
        destinations, local_rank = self._agent.logs.destinations, failure.exit.local_rank
        return failures.in_full(
            failure,
            destinations.error_files.get(local_rank, "") if destinations else "",
            destinations.stderrs.get(local_rank, "") if destinations else "",
            self._agent.boards.stderr_path(local_rank),
        )


def _ended(failure: Failure, group: RankGroup) -> Failure:
    """With how a hung rank really ended, known by now."""
    end = group.exits.get(failure.exit.local_rank)
    return replace(failure, exit=end) if failure.hung and end else failure


def _by_itself(failure: Failure, group: RankGroup) -> bool:
    """Whether a rank that ended while it was being stopped had failed, and did not just obey."""
    if failure.leaving:
        return True
    return failure.exit.local_rank not in group.killed and not obeyed(failure.exit, signal.SIGTERM)
