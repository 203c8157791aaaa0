"""A node whose ranks are done, or that only hosts the rendezvous: it waits for how the others end.

Does not cover: the loss of the node that hosts the rendezvous; then there is nobody to wait for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..inbox import stops
from ..nodes.job import JobEnded, host_gone
from ..nodes.node_watch import UNKNOWN
from ..nodes.records import END, Abandoned, HostLost, Moved, NodeLost, Record
from ..ranks import exits
from .preemption import Preemption
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")


class WithoutRanks:
    """What the agent waits for while none of its ranks runs."""

    def __init__(
        self, agent: Surroundings, preemption: Preemption, propose_without: Callable[[NodeLost, str], Record]
    ) -> None:
        self._agent, self._preemption, self._propose_without = agent, preemption, propose_without

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
            agent.monitor.check(time.monotonic())
            if reason := agent.job.contact_lost(time.monotonic()):
                raise host_gone(reason)

    def _news(self, event: object) -> Record | None:
        """What an event means to a node without ranks; raises JobLost or JobEnded."""
        agent = self._agent
        if isinstance(event, Moved) and event.cycle == agent.job.record.cycle:
            return event.record
        if isinstance(event, NodeLost) and event.cycle == agent.job.record.cycle:
            return self._propose_without(event, "are done")
        if isinstance(event, HostLost):
            raise host_gone(event.reason)
        if isinstance(event, Abandoned):
            why = f"no other node has shown any sign for {event.waited:.0f} s: there is nobody left to host"
            logger.warning("node %s: %s", agent.node, why)
            raise JobEnded(agent.job.record.next(END, reason=why, node=agent.node))
        if stops(event):
            self._preemption.say_received(event.number)
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
