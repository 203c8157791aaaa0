"""The elastic agent of one node: cycle after cycle it starts the ranks, watches them, and acts on what ends a cycle.

Built on torch's LocalElasticAgent, which makes the places in the world, the environments, the log files and the
processes. Each way a cycle can end (:mod:`.outcomes`) has one method here that says what follows.
Does not cover: detection (the monitor), and agreement between nodes (:mod:`.job`).
"""

from __future__ import annotations

import logging
import signal
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from holdfast.journal.writer import Journal

from ...monitor.control import IDLE, RUNNING, STOPPING, ControlPage
from .. import in_time
from ..inbox import Inbox, Interrupted
from ..monitor_keeper import MonitorKeeper
from ..nodes.job import Job, JobEnded, JobLost, host_gone
from ..nodes.records import END, EXCLUDE, JOIN, RESTART, Moved, NodeLost, NodesWaiting, Record
from ..ranks import exits, failures, orphans
from ..ranks.boards import CycleBoards
from ..ranks.environment import SupervisedLogs
from ..ranks.failures import Failure
from ..ranks.group import RankGroup
from . import leftovers, policy
from .contradictions import Advice
from .cycle_watch import CycleWatch
from .ending import SAVING, Ending
from .harmless import harmless
from .outcomes import Failed, Outcome, Requested, Succeeded, ToldToStop
from .post_mortem import PostMortem
from .resume import Resume

logger = logging.getLogger("holdfast.launcher")
HELPERS_END = 2.0  # seconds
NO_SIGNAL = "SIGSYS"  # torch insists on handlers of its own for some signal; nobody sends this one


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user decided: seconds, counts and codes."""

    max_restarts: int
    reset_on_progress: bool
    term_timeout: float
    stop_timeout: float
    preempted_code: int


class Agent(LocalElasticAgent):
    """One node's agent; `serve` runs the job to its end."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs: SupervisedLogs,
        log_line_prefix: str | None,
        *,
        node: str,
        rules: Rules,
        job: Job,
        boards: CycleBoards,
        control: ControlPage,
        monitor: MonitorKeeper,
        journal: Journal,
        inbox: Inbox,
        advice: Advice,
    ) -> None:
        super().__init__(spec, logs, log_line_prefix_template=log_line_prefix)
        self.node, self.rules, self.job, self.boards = node, rules, job, boards
        self.control, self.monitor, self.journal, self.inbox = control, monitor, journal, inbox
        self.advice = advice
        self._logs = logs
        self._group: RankGroup | None = None
        self._resume = Resume()
        self._joins = policy.MembershipBudget()
        self._reached = policy.Progress()
        self._ending, self.post_mortem = Ending(self), PostMortem(self)

    # -- the job ----------------------------------------------------------------------------------

    def serve(self) -> int:
        """Run the job to its end; returns the launcher's exit code."""
        try:
            while True:
                self._take_places()
                watch = self._start_cycle()
                outcome = watch.run()
                while isinstance(outcome, NodesWaiting) and not self._joins.allows(self._ending.now()):
                    outcome = watch.run()  # they have to wait: the job must not restart all the time
                self._follow(outcome, watch)
        except JobEnded as end:
            return self._ended(end.record)
        except Interrupted as stop:
            return self._interrupted(stop)
        except JobLost as lost:
            self._stop_ranks("the job is lost")
            logger.error("node %s leaves the job: %s", self.node, lost)
            why, host = (lost.host_gone, self.job.host) if lost.host_gone else (str(lost), "")
            self.journal.record("job_lost", reason=why, host=host)
            self.journal.record("run_end", exit_code=exits.FAILED, reason=str(lost))
            return exits.FAILED
        except Exception as error:
            return self._broke(error)
        finally:
            self._stop_for_sure()
            self.boards.close()

    def _take_places(self) -> None:
        """Join the current cycle; with the others, learn this node's and its ranks' places in the world."""
        while True:
            try:
                with self.inbox.interruptible():
                    self._rendezvous(self._worker_group)
                return
            except DistError as error:  # torch's exchange of places: a node died between joining and telling
                why = f"cycle {self.job.record.cycle} could not begin ({error})"
                self.job.advance(self.job.propose(self.job.record.next(JOIN, reason=why, node=self.node)))

    def _start_cycle(self) -> CycleWatch:
        cycle = self.job.record.cycle
        count = self._worker_group.spec.local_world_size
        page = self.boards.open(cycle, count)
        if page:
            self.control = page
            self.monitor.move_to(page)
        self.journal.record(
            "cycle_start",
            cycle=cycle,
            world_size=self._worker_group.workers[0].world_size,
            node_rank=self._worker_group.group_rank,
        )
        try:
            self._start_workers(self._worker_group)
        except OSError as error:  # no process to be had, no file for its output
            orphans.end_all({self.monitor.pid})  # those that did start
            raise JobLost(f"its ranks could not be started: {error}") from error
        self.control.enter(RUNNING, cycle)
        self.monitor.look()
        assert self._group is not None
        return CycleWatch(self, self._group, self._resume)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Let torch start the processes, then take them over by pidfd and put them on the boards."""
        ids: dict[int, Any] = super()._start_workers(worker_group)
        assert isinstance(self._pcontext, SubprocessContext)  # the entrypoint is always a command
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        processes = {local: handler.proc for local, handler in self._pcontext.subprocess_handlers.items()}
        self._group = RankGroup(processes, ranks, self.inbox)
        for local_rank, process in processes.items():
            self.boards.admit(local_rank, ranks[local_rank], process.pid)
            self.journal.record(
                "rank_start",
                cycle=self.job.record.cycle,
                rank=ranks[local_rank],
                local_rank=local_rank,
                pid=process.pid,
            )
        return ids

    # -- what follows from how a cycle ended --------------------------------------------------------

    def _follow(self, outcome: Outcome, watch: CycleWatch) -> None:
        """Returns when another cycle is to be joined; raises JobEnded or JobLost otherwise."""
        if isinstance(outcome, Succeeded):
            self._after_success()
        elif isinstance(outcome, Failed):
            self._after_failure(outcome, watch)
        elif isinstance(outcome, ToldToStop):
            self._after_signal(outcome)
        elif isinstance(outcome, Requested):
            self._after_request(outcome)
        elif isinstance(outcome, Moved):
            self._go_on(outcome.record)
        elif isinstance(outcome, NodeLost):
            self._go_on(self.propose_without(outcome, "stand still"))
        elif isinstance(outcome, NodesWaiting):
            self._after_arrival(outcome)
        else:
            raise host_gone(outcome.reason)

    def _after_success(self) -> None:
        record = self.job.ranks_finished(preempted=False, preempted_code=self.rules.preempted_code)
        record = record or self._ending.wait_for_others()
        if record.kind == END and record.exit_code == 0:
            leftovers.wait(self, SAVING)
        self._go_on(record)

    def _after_failure(self, failed: Failed, watch: CycleWatch) -> None:
        self._resume.stopped()
        self.control.enter(STOPPING, self.job.record.cycle)
        used = self._restarts_used()
        assert self._group is not None
        group, found = self._group, [Failure(end, None) for end in failed.exits]
        reason = found[0].meaning
        with harmless("the post mortem"):
            found = self.post_mortem.failed_until_now(failed, watch)
            reason = self.post_mortem.first_words(found[0])
        code = exits.of_failures(each.exit for each in failures.causes(found))
        if policy.may_restart(used, self.rules.max_restarts):
            proposal = self.job.record.next(RESTART, reason=reason, node=self.node, restarts=used + 1)
        else:
            proposal = self.job.record.next(END, reason=reason, node=self.node, exit_code=code)
        counts = self.job.propose(proposal)
        stuck = self._stop_ranks(reason)
        with harmless("the post mortem"):
            self.post_mortem.explain(found, group, watch, counts)
        if stuck:
            raise JobLost(f"{stuck} did not end even by SIGKILL, so nothing can be started beside it")
        self._go_on(counts)

    def _restarts_used(self) -> int:
        """Restarts already spent; with --ft-restarts-reset-on-progress only those in a row without progress."""
        boards = self.boards.snapshots().values()
        now = policy.Progress(
            max((board.step for board in boards if board.step is not None), default=-1),
            sum(board.checkpoints for board in boards),
        )
        advanced = now.beyond(self._reached)
        self._reached = policy.Progress(max(now.step, self._reached.step), 0)
        return 0 if advanced and self.rules.reset_on_progress else self.job.record.restarts

    def _after_signal(self, told: ToldToStop) -> None:
        code, clean = self._ending.preempt(told.number)
        if clean and told.number != signal.SIGINT and self._all_left_by_themselves():
            leftovers.wait(self, min(SAVING, self.rules.term_timeout))
        try:
            record = self.job.ranks_finished(preempted=True, preempted_code=code) if clean else None
        except JobLost:
            record = None  # the host had less to save, and has left: how this node ends is known without it
        if record is None:
            self.job.wait_as_host(self._ending.HOST_STAYS)
        raise JobEnded(
            self.job.record.next(END, reason=f"stopped by {told.number.name}", node=self.node, exit_code=code)
        )

    def _all_left_by_themselves(self) -> bool:
        """Whether no rank just died of the signal, and so none had the occasion to settle anything."""
        return self._group is not None and all(end.status == 0 for end in self._group.exits.values())

    def _after_request(self, asked: Requested) -> None:
        why = f"rank {asked.rank} (node {self.node}) asked for it: {asked.description}"
        if asked.action == "shutdown_workload":
            logger.warning("shutting the whole job down: %s", why)
            end = self.job.record.next(END, reason=why, node=self.node, exit_code=exits.DO_NOT_REQUEUE)
            self._go_on(self.job.propose(end))
            return
        logger.warning("node %s leaves the job: %s", self.node, why)
        self.journal.record("node_excluded", reason=why)
        counts = self.job.propose(self.job.record.next(EXCLUDE, reason=why, node=self.node, lost=1))
        self._stop_ranks(why)
        self._ending.stay_as_host(counts)
        raise JobEnded(self.job.record.next(END, reason=why, node=self.node, exit_code=0))

    def propose_without(self, lost: NodeLost, local_ranks: str) -> Record:
        """Begin a cycle without a node that is gone, if a restart is left; returns the record that counts."""
        self._resume.stopped()
        why = f"node {lost.node} is gone: no sign of it for {lost.waited:.1f} s, and the local ranks {local_ranks}"
        logger.warning("NODE LOST: %s", why)
        self.journal.record("node_lost", lost=lost.node, waited=round(lost.waited, 3))
        used, record = self._restarts_used(), self.job.record
        if policy.may_restart(used, self.rules.max_restarts):
            return self.job.propose(
                record.next(RESTART, reason=why, node=self.node, restarts=used + 1, lost=1)
            )
        logger.error("no restart left (%d of %d used): the job ends", used, self.rules.max_restarts)
        return self.job.propose(record.next(END, reason=why, node=self.node, exit_code=exits.FAILED))

    def _after_arrival(self, waiting: NodesWaiting) -> None:
        self._joins.take(self._ending.now())
        self._resume.stopped()
        why = f"{waiting.count} more node{'s' if waiting.count > 1 else ''} came to join"
        self._go_on(self.job.propose(self.job.record.next(JOIN, reason=why, node=self.node)))

    # -- between cycles -----------------------------------------------------------------------------

    def _go_on(self, record: Record) -> None:
        """Stop what still runs here, then join the cycle of `record`, or end the job with it."""
        self._stop_ranks(record.reason)
        if record.kind == END:
            raise JobEnded(record)
        spent = f" (restart {record.restarts} of {self.rules.max_restarts})" if record.kind == RESTART else ""
        if record.kind == JOIN:
            whose = f" because {record.reason}"
        else:
            whose = "" if record.node == self.node else f" because node {record.node} says: {record.reason}"
        count = self._worker_group.spec.local_world_size
        logger.warning("restarting all %d local ranks%s%s", count, spent, whose)
        self.journal.record(
            "restart",
            cycle=record.cycle,
            restarts_used=record.restarts,
            max_restarts=self.rules.max_restarts,
            reason=record.reason,
        )
        self.job.advance(record)

    def _stop_ranks(self, reason: str) -> str:
        """Stop the local ranks and sweep what they left; returns who could not be ended ('' for nobody)."""
        if self._group is None:
            return ""
        self.control.enter(STOPPING, self.job.record.cycle)
        self.journal.record("stop", cycle=self.job.record.cycle, reason=reason)
        stuck = self._ending.stop(self._group)
        self._group.close()
        self._group = None
        self._end_helpers()
        self.control.enter(IDLE, self.job.record.cycle)
        return stuck

    def _end_helpers(self) -> None:
        """End the threads that torch started beside the ranks: log tailers, watchdog, health check.

        A tailer may wait for a hung disk, or for a reader of our standard output; nobody else waits for it then.
        """
        helpers = (getattr(self, name, None) for name in ("_worker_watchdog", "_health_check_server"))
        ends = [helper.stop for helper in helpers if helper is not None]
        if self._pcontext is not None:
            ends.append(partial(self._pcontext.close, timeout=0))  # the processes are gone
        self._worker_watchdog = self._health_check_server = self._pcontext = None
        for end in ends:
            try:
                in_time.within(HELPERS_END, end)
            except in_time.TooLate:
                logger.warning(
                    "torch's log output is held up: what the ranks wrote last may be missing from it"
                )

    def _broke(self, error: Exception) -> int:
        """A defect of the launcher itself, or of the machine in a way that nobody thought of."""
        why = f"the launcher itself failed: {error!r}"
        where = "".join(traceback.format_exception(error))
        self._stop_for_sure()
        logger.error("%s. Please report this as a bug of Holdfast, with %s", why, self.journal.path)
        logger.debug("where:", exc_info=error)
        self.journal.record("run_end", exit_code=exits.FAILED, reason=why, traceback=where)
        return exits.FAILED

    def _stop_for_sure(self) -> None:
        """Stop the ranks, by force if what does it in good order fails."""
        try:
            self._stop_ranks("the launcher ends")
        except Exception as error:
            logger.error("the ranks could not be stopped in good order (%r): they are killed", error)
            orphans.end_all({self.monitor.pid})
            self._group = None

    def _interrupted(self, stop: Interrupted) -> int:
        self._ending.say_received(stop.number)
        self.job.withdraw()
        code = exits.of_stop(stop.number, self.rules.preempted_code)
        self.journal.record("run_end", exit_code=code, reason=f"stopped by {stop.number.name}")
        return code

    def _ended(self, record: Record) -> int:
        self._stop_ranks(record.reason)
        if record.exit_code and record.node and record.node != self.node:
            logger.error(
                "the job ends with exit code %d, node %s says: %s",
                record.exit_code,
                record.node,
                record.reason,
            )
        self.journal.record("run_end", exit_code=record.exit_code, reason=record.reason)
        return record.exit_code

    @property
    def group(self) -> RankGroup | None:
        """The ranks that run now."""
        return self._group

    @property
    def logs(self) -> SupervisedLogs:
        """Where the ranks' output goes."""
        return self._logs
