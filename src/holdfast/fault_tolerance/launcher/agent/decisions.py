"""What follows from how a cycle ended: another cycle, or the job's end.

Each way a cycle can end (:mod:`.outcomes`) has one method here. What is decided is proposed to the other nodes, and
the proposal that counts, ours or an earlier one, is acted on.
Does not cover: detection (the monitor), and agreement between nodes (:mod:`..nodes.job`).
"""

from __future__ import annotations

import logging
import signal
import time

from ...monitor.control import STOPPING
from ..nodes.job import JobEnded, JobLost, host_gone
from ..nodes.records import END, EXCLUDE, JOIN, RESTART, Moved, NodeLost, NodesWaiting, Record
from ..ranks import exits, failures
from ..ranks.failures import Failure
from . import leftovers, policy
from .cycle_watch import CycleWatch
from .harmless import harmless
from .outcomes import Failed, Outcome, Requested, StoreFailed, Succeeded, ToldToStop
from .post_mortem import PostMortem
from .preemption import Preemption
from .resume import Resume
from .stopping import SAVING, Stopping
from .surroundings import Surroundings
from .without_ranks import WithoutRanks

logger = logging.getLogger("holdfast.launcher")
HOST_STAYS = 10.0  # seconds a preempted host of the rendezvous store stays for the others' sake


class Decisions:
    """The decisions of one node's agent."""

    def __init__(
        self,
        agent: Surroundings,
        resume: Resume,
        stopping: Stopping,
        preemption: Preemption,
        post_mortem: PostMortem,
    ) -> None:
        self._agent, self._resume, self._stopping = agent, resume, stopping
        self._preemption, self._post_mortem = preemption, post_mortem
        self._without_ranks = WithoutRanks(agent, preemption, self._propose_without)
        self._joins = policy.MembershipBudget()
        self._reached = policy.Progress()

    def may_wait(self, outcome: Outcome) -> bool:
        """Whether it is only about nodes that came too soon: the job must not restart all the time."""
        return isinstance(outcome, NodesWaiting) and not self._joins.allows(time.monotonic())

    def follow(self, outcome: Outcome, watch: CycleWatch) -> None:
        """Returns when another cycle is to be joined; raises JobEnded or JobLost otherwise."""
        if isinstance(outcome, Succeeded):
            self._after_success(watch)
        elif isinstance(outcome, Failed):
            self._after_failure(outcome, watch)
        elif isinstance(outcome, ToldToStop):
            self._after_signal(outcome)
        elif isinstance(outcome, Requested):
            self._after_request(outcome)
        elif isinstance(outcome, StoreFailed):
            logger.error("%s", outcome.reason)
            self._go_on(self._propose_restart(outcome.reason))
        elif isinstance(outcome, Moved):
            self._after_news(outcome.record, watch)
        elif isinstance(outcome, NodeLost):
            self._after_loss(outcome, watch)
        elif isinstance(outcome, NodesWaiting):
            self._after_arrival(outcome)
        else:
            raise host_gone(outcome.reason)

    def _after_success(self, watch: CycleWatch) -> None:
        agent = self._agent
        record = agent.job.ranks_finished(preempted=False, preempted_code=agent.rules.preempted_code)
        record = record or self._without_ranks.wait_for_others()
        if record.kind == END and record.exit_code == 0:
            leftovers.wait(agent, SAVING)
        self._after_news(record, watch)

    def _after_failure(self, failed: Failed, watch: CycleWatch) -> None:
        agent = self._agent
        self._resume.stopped()
        agent.control.enter(STOPPING, agent.job.record.cycle)
        used = self._restarts_used()
        assert agent.group is not None
        group, found = agent.group, [Failure(end, None) for end in failed.exits]
        reason = found[0].meaning
        with harmless("the post mortem"):
            found = watch.known.until_now(failed.exits)
            reason = self._post_mortem.first_words(found[0])
        code = exits.of_failures(each.exit for each in failures.causes(found))
        if policy.may_restart(used, agent.rules.max_restarts):
            proposal = agent.job.record.next(RESTART, reason=reason, node=agent.node, restarts=used + 1)
        else:
            proposal = agent.job.record.next(END, reason=reason, node=agent.node, exit_code=code)
        counts = agent.job.propose(proposal)
        if counts.node != agent.node and all(each.lost_connection for each in found):
            self._take_evidence()
        stuck = self._stopping.stop(reason)
        with harmless("the post mortem"):
            watch.hear_out()
            counts = self._post_mortem.explain(found, group, watch, counts)
            agent.incidents.conclude(group, self._post_mortem.ordered, reason=reason, reporter=counts.node)
        if stuck:
            raise JobLost(f"{stuck} did not end even by SIGKILL, so nothing can be started beside it")
        self._go_on(counts)

    def _after_news(self, record: Record, watch: CycleWatch) -> None:
        """Another node has begun the next cycle, or ended the job: because of trouble, or in good order."""
        if self._agent.group is None or not policy.is_trouble(record):
            self._go_on(record)
            return
        self._take_evidence()
        self._stop_and_report(record, watch)

    def _after_loss(self, lost: NodeLost, watch: CycleWatch) -> None:
        self._take_evidence()
        self._stop_and_report(self._propose_without(lost, "stand still"), watch, (lost.node,))

    def _take_evidence(self) -> None:
        """From here on the monitor gives no verdicts: the ranks are looked at, and then stopped."""
        self._agent.control.enter(STOPPING, self._agent.job.record.cycle)
        with harmless("the taking of evidence"):
            self._agent.incidents.elsewhere()

    def _stop_and_report(self, record: Record, watch: CycleWatch, lost: tuple[str, ...] = ()) -> None:
        agent, group = self._agent, self._agent.group
        self._stopping.stop(record.reason)
        if group is not None:
            with harmless("the report of an incident"):
                watch.hear_out()
                known = self._post_mortem.of(group, watch)
                agent.incidents.conclude(
                    group, known, reason=record.reason, reporter=record.node, lost_nodes=lost
                )
        self._go_on(record)

    def _restarts_used(self) -> int:
        """Restarts already spent; with --ft-restarts-reset-on-progress only those in a row without progress."""
        agent = self._agent
        boards = agent.boards.snapshots().values()
        now = policy.Progress(
            max((board.step for board in boards if board.step is not None), default=-1),
            sum(board.checkpoints for board in boards),
        )
        advanced = now.beyond(self._reached)
        self._reached = policy.Progress(max(now.step, self._reached.step), 0)
        return 0 if advanced and agent.rules.reset_on_progress else agent.job.record.restarts

    def _after_signal(self, told: ToldToStop) -> None:
        agent = self._agent
        code, clean = self._preemption.preempt(told)
        if clean and told.number != signal.SIGINT and self._all_left_by_themselves():
            leftovers.wait(agent, min(SAVING, agent.rules.term_timeout))
        try:
            record = agent.job.ranks_finished(preempted=True, preempted_code=code) if clean else None
        except JobLost:
            record = None  # the host had less to save, and has left: how this node ends is known without it
        if record is None:
            agent.job.wait_as_host(HOST_STAYS)
        raise JobEnded(
            agent.job.record.next(
                END, reason=f"stopped by {told.number.name}", node=agent.node, exit_code=code
            )
        )

    def _all_left_by_themselves(self) -> bool:
        """Whether no rank just died of the signal, and so none had the occasion to settle anything."""
        agent = self._agent
        return agent.group is not None and all(end.status == 0 for end in agent.group.exits.values())

    def _after_request(self, asked: Requested) -> None:
        agent = self._agent
        why = f"rank {asked.rank} (node {agent.node}) asked for it: {asked.description}"
        if asked.action == "shutdown_workload":
            logger.warning("shutting the whole job down: %s", why)
            end = agent.job.record.next(END, reason=why, node=agent.node, exit_code=exits.DO_NOT_REQUEUE)
            self._go_on(agent.job.propose(end))
            return
        logger.warning("node %s leaves the job: %s", agent.node, why)
        agent.journal.record("node_excluded", reason=why)
        counts = agent.job.propose(agent.job.record.next(EXCLUDE, reason=why, node=agent.node, lost=1))
        self._stopping.stop(why)
        self._without_ranks.stay_as_host(counts)
        raise JobEnded(agent.job.record.next(END, reason=why, node=agent.node, exit_code=0))

    def _propose_without(self, lost: NodeLost, local_ranks: str) -> Record:
        """Begin a cycle without a node that is gone, if a restart is left; returns the record that counts."""
        why = f"node {lost.node} is gone: no sign of it for {lost.waited:.1f} s, and the local ranks {local_ranks}"
        logger.warning("NODE LOST: %s", why)
        self._agent.journal.record("node_lost", lost=lost.node, waited=round(lost.waited, 3))
        return self._propose_restart(why, lost=1)

    def _propose_restart(self, why: str, lost: int = 0) -> Record:
        """Begin another cycle if a restart is left, else end the job; returns the record that counts."""
        agent = self._agent
        self._resume.stopped()
        used, record = self._restarts_used(), agent.job.record
        if policy.may_restart(used, agent.rules.max_restarts):
            return agent.job.propose(
                record.next(RESTART, reason=why, node=agent.node, restarts=used + 1, lost=lost)
            )
        logger.error("no restart left (%d of %d used): the job ends", used, agent.rules.max_restarts)
        return agent.job.propose(record.next(END, reason=why, node=agent.node, exit_code=exits.FAILED))

    def _after_arrival(self, waiting: NodesWaiting) -> None:
        agent = self._agent
        self._joins.take(time.monotonic())
        self._resume.stopped()
        why = f"{waiting.count} more node{'s' if waiting.count > 1 else ''} came to join"
        self._go_on(agent.job.propose(agent.job.record.next(JOIN, reason=why, node=agent.node)))

    def _go_on(self, record: Record) -> None:
        """Stop what still runs here, then join the cycle of `record`, or end the job with it."""
        agent = self._agent
        self._stopping.stop(record.reason)
        if record.kind == END:
            raise JobEnded(record)
        spent = (
            f" (restart {record.restarts} of {agent.rules.max_restarts})" if record.kind == RESTART else ""
        )
        if record.kind == JOIN:
            whose = f" because {record.reason}"
        else:
            whose = "" if record.node == agent.node else f" because node {record.node} says: {record.reason}"
        count = agent.ranks_wanted
        logger.warning("restarting all %d local ranks%s%s", count, spent, whose)
        agent.journal.record(
            "restart",
            cycle=record.cycle,
            restarts_used=record.restarts,
            max_restarts=agent.rules.max_restarts,
            reason=record.reason,
        )
        agent.job.advance(record)
