"""A signal to the launcher: it is passed on once, and the ranks get time to save.

Does not cover: what to do next; :mod:`.decisions` says that.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...monitor.control import STOPPING
from .. import console
from ..inbox import Signalled
from ..nodes.stop_notes import WANTED
from ..nodes.stop_watch import wanted_text
from ..ranks import exits, failures
from ..ranks.consequences import follows, lost_worker
from ..ranks.exits import RankExit, obeyed
from ..ranks.group import RankGroup, describe_stuck
from .agreement import Agreement
from .harmless import harmless
from .outcomes import ToldToStop
from .post_mortem import PostMortem
from .stopping import SAVING, Stopping
from .surroundings import Surroundings

logger = logging.getLogger("holdfast.launcher")
ROUNDING = 0.001  # seconds, of the difference of two moments
UNSAID = 5.0  # seconds in which ranks leave after Ctrl-C without anything being said


class Preemption:
    """How the agent ends its ranks when it is told to."""

    def __init__(self, agent: Surroundings, stopping: Stopping, post_mortem: PostMortem) -> None:
        self._agent, self._stopping, self._post_mortem = agent, stopping, post_mortem

    def say_received(self, number: signal.Signals, by: str = "") -> None:
        """Into the journal and onto the console; `by` says who was told, if not this launcher."""
        if by:
            console.received_by(by, number)
            self._agent.journal.record("preemption", signal=number.name, by=by)
            return
        console.received(number)
        self._agent.journal.record("preemption", signal=number.name)

    def preempt(self, told: ToldToStop) -> tuple[int, bool]:
        """Pass the signal on and let the ranks save; returns the exit code and whether no rank failed."""
        agent, group, number = self._agent, self._agent.group, told.number
        assert group is not None
        self.say_received(number, told.by)
        # No verdicts any more: the term timeout is the limit.
        agent.control.enter(STOPPING, agent.job.record.cycle)
        began = time.monotonic()
        deadline = began + agent.rules.term_timeout
        agent.boards.stops.tell(number, deadline)
        for pid in group.signal(number).values():
            logger.warning("Sending process %d closing signal %s", pid, number.name)
            agent.journal.record("signal_sent", pid=pid, signal=number.name, by="launcher")
        group.signal(signal.SIGCONT)  # a stopped rank would sit on it
        patience = _Patience(group, number, deadline, self._stopping.is_saving)
        with self._agreeing(group, number):
            stuck = group.wait(patience.until, patience.sees, began)
        self._say_killed(group, number)
        self._stopping.record_exits(group, number)
        failed = self._failed_by_themselves(group, number)
        code, clean = exits.of_stop(number, agent.rules.preempted_code), not failed and not stuck
        if number == signal.SIGINT:  # people know why it ended, whatever the ranks made of it
            failed = []
        if failed:
            with harmless("the post mortem"):
                self._post_mortem.say_failed(failed)
        if stuck:
            logger.error("did not end even by SIGKILL: %s", describe_stuck(stuck))
        if stuck and number != signal.SIGINT:
            return exits.FAILED, clean
        return (exits.of_failures(failed) if failed else code), clean

    @contextmanager
    def _agreeing(self, group: RankGroup, number: signal.Signals) -> Iterator[None]:
        """Meanwhile agree where all ranks stop, if ranks of this node take part in that, or begin to."""
        agent = self._agent
        if not agent.boards.stops:
            yield
            return
        node, world = agent.node_place
        agreement = Agreement(
            agent.boards.stops,
            agent.job.stop_notes(),
            node,
            world,
            group.exits.__contains__,
            agent.journal.record,
            (WANTED, wanted_text(agent.node, number)) if world > 1 else None,
            begins=lambda: agent.journal.record("stop_wanted", signal=number.name, nodes=world),
        )
        agreement.start()
        try:
            yield
        finally:
            agreement.close()

    def _failed_by_themselves(self, group: RankGroup, number: signal.Signals) -> list[RankExit]:
        """The ranks that neither obeyed nor merely lost a peer or their data-loader workers to the same signal."""
        failed = []
        for found in group.exits.values():
            failure = failures.at_hand(found, self._agent.boards.error_path(found.local_rank))
            if obeyed(found, number) and not (found.status and failure.leaving):
                continue
            if not follows(failure):
                # One that an exception was ending, when the signal ended it, has failed: by Python's own code.
                failed.append(replace(found, status=exits.FAILED) if obeyed(found, number) else found)
                continue
            what = "its data-loader workers" if lost_worker(failure) else "a rank that it was connected to"
            logger.warning("rank %d: %s ended by %s: %s", found.rank, what, number.name, failure.meaning)
        return failed

    def _say_killed(self, group: RankGroup, number: signal.Signals) -> None:
        """Who did not leave in the time it had: the setting that decided is named."""
        limit = self._agent.rules.term_timeout
        for local_rank, waited in group.killed.items():
            who = f"rank {group.rank_of(local_rank)} (pid {group.pid_of(local_rank)})"
            if waited >= limit - ROUNDING:
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


class _Patience:
    """While preempted ranks save: a rank that failed shortens the wait for the others, a second Ctrl-C ends it."""

    def __init__(
        self, group: RankGroup, number: signal.Signals, until: float, saving: Callable[[int], bool]
    ) -> None:
        self._group, self._number, self._until, self._saving = group, number, until, saving
        self._failed_at: float | None = None
        self._began, self._said = time.monotonic(), False
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
        if self._number == signal.SIGINT:
            self._say_that_it_waits()
        return any(isinstance(event, Signalled) and event.number == signal.SIGINT for event in events)

    def _say_that_it_waits(self) -> None:
        """Whoever presses Ctrl-C looks at the terminal; a library may have swallowed a rank's KeyboardInterrupt."""
        if self._said or time.monotonic() - self._began < UNSAID or not self._group.running:
            return
        self._said = True
        ranks = ", ".join(str(self._group.rank_of(local)) for local in list(self._group.running)[:8])
        left = self._until - time.monotonic()
        when = f", or they are killed in {left:.0f} s (--term-timeout)" if left < math.inf else ""
        logger.warning("still there after SIGINT: rank %s. Ctrl-C again ends them at once%s", ranks, when)
