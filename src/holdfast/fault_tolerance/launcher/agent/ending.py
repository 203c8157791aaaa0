"""Stopping ranks: for a restart, and for good on a signal.

Does not cover: what to do next; :mod:`.agent` decides that.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...monitor.control import STOPPING
from .. import console
from ..inbox import Signalled, stops
from ..nodes.job import JobEnded, host_gone
from ..nodes.node_watch import UNKNOWN
from ..nodes.records import END, Abandoned, HostLost, Moved, NodeLost, Record
from ..ranks import exits, orphans
from ..ranks.exits import obeyed
from ..ranks.group import RankGroup, describe_stuck
from .exit_record import record_exit
from .harmless import harmless

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("holdfast.launcher")
SAVING = 30.0  # seconds for a rank that may be saving: with an open `checkpointing` section, or preempted


class Ending:
    """How the agent ends things."""

    HOST_STAYS = 10.0  # seconds a preempted host of the rendezvous store stays for the others' sake

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.now = time.monotonic

    # -- for a restart ------------------------------------------------------------------------------

    def stop(self, group: RankGroup) -> str:
        """SIGTERM, patience, SIGKILL, then the sweep; returns who outlived all that ('' for nobody)."""
        agent = self._agent
        stuck = group.stop(self._grace, self._impatient)
        self._record_exits(group, signal.SIGTERM)
        swept, left = orphans.end_all({agent.monitor.pid, *stuck})
        if swept:
            agent.journal.record("swept", pids=sorted(swept))
        left -= set(stuck)
        if left:
            logger.warning(
                "processes that the ranks left behind could not be ended: %s", describe_stuck(sorted(left))
            )
        return describe_stuck(stuck)

    def _record_exits(self, group: RankGroup, number: int) -> None:
        for found in group.fresh_exits():
            stopped = found.local_rank in group.killed or obeyed(found, number)
            cycle = self._agent.job.record.cycle
            record_exit(self._agent.journal, self._agent.boards, found, cycle, stopped=stopped)

    def _grace(self, local_rank: int) -> float:
        patience = self._agent.rules.stop_timeout
        return max(patience, SAVING) if self._is_saving(local_rank) else patience

    def _is_saving(self, local_rank: int) -> bool:
        board = self._agent.boards.snapshots().get(local_rank)
        return board is not None and any(section.name == "checkpointing" for section in board.open_sections)

    @staticmethod
    def _impatient(events: list[object]) -> bool:
        """Ctrl-C makes a stop immediate."""
        return any(isinstance(event, Signalled) and event.number == signal.SIGINT for event in events)

    # -- on a signal --------------------------------------------------------------------------------

    def say_received(self, number: signal.Signals) -> None:
        """Into the journal and onto the console."""
        console.received(number)
        self._agent.journal.record("preemption", signal=number.name)

    def preempt(self, number: signal.Signals) -> tuple[int, bool]:
        """Pass the signal on and let the ranks save; returns the exit code and whether no rank failed."""
        agent, group = self._agent, self._agent.group
        assert group is not None
        self.say_received(number)
        agent.control.enter(
            STOPPING, agent.job.record.cycle
        )  # no verdicts any more: the term timeout is the limit
        for pid in group.signal(number).values():
            logger.warning("Sending process %d closing signal %s", pid, number.name)
            agent.journal.record("signal_sent", pid=pid, signal=number.name, by="launcher")
        patience = _Patience(group, number, self.now() + agent.rules.term_timeout, self._is_saving)
        stuck = group.wait(patience.until, patience.sees)
        self._say_killed(group, number)
        self._record_exits(group, number)
        failed = [found for found in group.exits.values() if not obeyed(found, number)]
        told, clean = exits.of_stop(number, agent.rules.preempted_code), not failed and not stuck
        if number == signal.SIGINT:  # people know why it ended, whatever the ranks made of it
            failed = []
        if failed:
            with harmless("the post mortem"):
                agent.post_mortem.say_failed(failed)
        if stuck:
            logger.error("did not end even by SIGKILL: %s", describe_stuck(stuck))
        if stuck and number != signal.SIGINT:
            return exits.FAILED, clean
        return (exits.of_failures(failed) if failed else told), clean

    def _say_killed(self, group: RankGroup, number: signal.Signals) -> None:
        """Who did not leave in the time it had: the setting that decided is named."""
        limit = self._agent.rules.term_timeout
        for local_rank, waited in group.killed.items():
            who = f"rank {group.rank_of(local_rank)} (pid {group.pid_of(local_rank)})"
            if waited >= limit:
                why = f"did not leave within --term-timeout {limit:g} s of {number.name}"
            else:
                why = f"had not left {waited:.1f} s after {number.name}, and was no longer waited for"
            logger.warning("%s %s: SIGKILL sent", who, why)
            self._agent.journal.record(
                "signal_sent",
                rank=group.rank_of(local_rank),
                pid=group.pid_of(local_rank),
                signal="SIGKILL",
                by="launcher",
                reason=why,
            )

    # -- with other nodes ---------------------------------------------------------------------------

    def wait_for_others(self) -> Record:
        """The local ranks are done; the others' may still fail, then everybody starts again."""
        agent = self._agent
        agent.job.progress = UNKNOWN
        while True:
            events = agent.inbox.wait(1.0)
            while events:
                if record := self._news(events.pop(0)):
                    for event in events:  # for whoever looks next
                        agent.inbox.post(event)
                    return record
            agent.monitor.check(self.now())
            if reason := agent.job.contact_lost(self.now()):
                raise host_gone(reason)

    def _news(self, event: object) -> Record | None:
        """What an event means to a node without ranks; raises JobLost or JobEnded."""
        agent = self._agent
        if isinstance(event, Moved) and event.cycle == agent.job.record.cycle:
            return event.record
        if isinstance(event, NodeLost) and event.cycle == agent.job.record.cycle:
            return agent.propose_without(event, "are done")
        if isinstance(event, HostLost):
            raise host_gone(event.reason)
        if isinstance(event, Abandoned):
            why = f"no other node has shown any sign for {event.waited:.0f} s: there is nobody left to host"
            logger.warning("node %s: %s", agent.node, why)
            raise JobEnded(agent.job.record.next(END, reason=why, node=agent.node))
        if stops(event):
            self.say_received(event.number)
            code = exits.of_stop(event.number, agent.rules.preempted_code)
            raise JobEnded(agent.job.record.next(END, reason=event.number.name, node="", exit_code=code))
        return None

    def stay_as_host(self, record: Record) -> None:
        """An excluded node that hosts the rendezvous store stays, without ranks, until the job ends."""
        job = self._agent.job
        if not job.is_host:
            return
        logger.warning("node %s hosts the rendezvous and stays for it, without ranks", self._agent.node)
        job.stand_by()
        while record.kind != END:
            job.advance(record)
            record = self.wait_for_others()


class _Patience:
    """While preempted ranks save: a rank that failed shortens the wait for the others, a second Ctrl-C ends it."""

    def __init__(
        self, group: RankGroup, number: signal.Signals, until: float, saving: Callable[[int], bool]
    ) -> None:
        self._group, self._number, self._until, self._saving = group, number, until, saving
        self._failed_at: float | None = None
        self.sees([])

    def until(self, local_rank: int) -> float:
        """The monotonic second at which this rank is killed.

        After a failure its peers may wait for the dead rank in a collective, for ever; one that says that it
        saves a checkpoint keeps all its time.
        """
        if self._failed_at is None or self._saving(local_rank):
            return self._until
        return min(self._until, self._failed_at + SAVING)

    def sees(self, events: list[object]) -> bool:
        """Whether to kill at once."""
        if self._failed_at is None and not all(
            obeyed(found, self._number) for found in self._group.exits.values()
        ):
            self._failed_at = time.monotonic()
        return any(isinstance(event, Signalled) and event.number == signal.SIGINT for event in events)
