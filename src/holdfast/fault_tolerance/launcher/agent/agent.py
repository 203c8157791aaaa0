"""The elastic agent of one node: cycle after cycle it starts the ranks, watches them, and acts on what ends a cycle.

Built on torch's LocalElasticAgent, which makes the places in the world, the environments, the log files and the
processes. What follows from the end of a cycle is in :mod:`.decisions`.
Does not cover: detection (the monitor), and agreement between nodes (:mod:`.job`).
"""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from holdfast import in_time
from holdfast.incidents.gathering import program
from holdfast.journal.writer import Journal

from ...monitor.control import RUNNING, ControlPage
from ..inbox import Inbox, Interrupted
from ..monitor_keeper import MonitorKeeper
from ..nodes.job import Job, JobEnded, JobLost
from ..nodes.records import JOIN, Record
from ..ranks import exits, orphans
from ..ranks.boards import CycleBoards
from ..ranks.environment import SupervisedLogs
from ..ranks.group import RankGroup
from ..warm.ahead import Ahead
from ..warm.start import WarmStart
from .contradictions import Advice
from .cycle_watch import CycleWatch
from .decisions import Decisions
from .harmless import harmless
from .incidents import Incidents
from .post_mortem import PostMortem
from .preemption import Preemption
from .resume import Resume
from .stopping import Stopping
from .surroundings import Rules

logger = logging.getLogger("holdfast.launcher")
HELPERS_END = 2.0  # seconds


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the launcher's signal handlers while torch starts ranks.

    `PContext.start` sets handlers of its own, and a preemption would be an exception in the middle of the agent. Until
    torch 2.9 no variable prevents that.
    """
    before = multiprocessing.signal
    multiprocessing.signal = SimpleNamespace(  # type: ignore[assignment]
        **{**vars(signal), "signal": lambda number, handler: None}
    )
    try:
        yield
    finally:
        multiprocessing.signal = before


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
        ahead: Ahead,
        run_dir: str,
    ) -> None:
        super().__init__(spec, logs, log_line_prefix_template=log_line_prefix)
        self.node, self.rules, self.job, self.boards = node, rules, job, boards
        self.control, self.monitor, self.journal, self.inbox = control, monitor, journal, inbox
        self.advice, self.ahead = advice, ahead
        self._warm = WarmStart(ahead.pool)
        self.logs = logs
        self.group: RankGroup | None = None
        self.incidents = Incidents(self, run_dir, spec.rdzv_handler.get_run_id())
        self._resume = Resume()
        post_mortem, self._stopping = PostMortem(self), Stopping(self)
        self._preemption = Preemption(self, self._stopping, post_mortem)
        self._decisions = Decisions(self, self._resume, self._stopping, self._preemption, post_mortem)

    # -- the job ----------------------------------------------------------------------------------

    def serve(self) -> int:
        """Run the job to its end; returns the launcher's exit code."""
        try:
            while True:
                self._take_places()
                watch = self._start_cycle()
                outcome = watch.run()
                while self._decisions.may_wait(outcome):
                    outcome = watch.run()
                try:
                    self._decisions.follow(outcome, watch)
                finally:
                    watch.look_back()
        except JobEnded as end:
            return self._ended(end.record)
        except Interrupted as stop:
            return self._interrupted(stop)
        except JobLost as lost:
            self._stopping.stop("the job is lost")
            logger.error("node %s leaves the job: %s", self.node, lost)
            why, host = (lost.host_gone, self.job.host) if lost.host_gone else (str(lost), "")
            self.journal.record("job_lost", reason=why, host=host)
            self.journal.record("run_end", exit_code=exits.FAILED, reason=str(lost))
            return exits.FAILED
        except Exception as error:
            return self._broke(error)
        finally:
            self._stopping.for_sure()
            self.incidents.close()
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
        page = self.boards.open(cycle, self.ranks_wanted)
        if page:
            self.control = page
            self.monitor.move_to(page)
        self.journal.record(
            "cycle_start",
            cycle=cycle,
            world_size=self._worker_group.workers[0].world_size,
            node_rank=self._worker_group.group_rank,
        )
        with harmless("the preparation of incident reports"):
            self.incidents.begin_cycle(self._worker_group.workers[0].world_size)
        try:
            self._start_workers(self._worker_group)
        except Exception as error:
            orphans.end_all(self.spared)  # those that did start
            if not isinstance(error, OSError):
                raise
            # No process to be had, or no file for its output.
            raise JobLost(f"its ranks could not be started: {error}") from error
        self.control.enter(RUNNING, cycle)
        self.monitor.look()
        assert self.group is not None
        return CycleWatch(self, self.group, self._resume)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Let torch start the processes, then take them over by pidfd and put them on the boards."""
        with self._warm.instead_of_cold(), _handlers_kept():
            ids: dict[int, Any] = super()._start_workers(worker_group)
        assert isinstance(self._pcontext, SubprocessContext)  # the entrypoint is always a command
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        processes = self._warm.confirm(self._pcontext.subprocess_handlers)
        self.group = RankGroup(processes, ranks, self.inbox)
        for local_rank, process in processes.items():
            self.boards.admit(local_rank, ranks[local_rank], process.pid)
            self.journal.record(
                "rank_start",
                cycle=self.job.record.cycle,
                rank=ranks[local_rank],
                local_rank=local_rank,
                pid=process.pid,
                start="warm" if local_rank in self._warm.warm else "cold",
            )
        return ids

    @property
    def spared(self) -> set[int]:
        """Children of this launcher that are no ranks, and that no rank has left behind."""
        return {self.monitor.pid} | self._warm.pids | program.RUNNING

    @property
    def node_place(self) -> tuple[int, int]:
        """This node's number in the cycle, and how many nodes take part."""
        return self._worker_group.group_rank or 0, self._worker_group.group_world_size or 1

    @property
    def ranks_wanted(self) -> int:
        """How many ranks each cycle has on this node."""
        count: int = self._worker_group.spec.local_world_size
        return count

    def end_helpers(self) -> None:
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
        self._stopping.for_sure()
        logger.error("%s. Please report this as a bug of Holdfast, with %s", why, self.journal.path)
        logger.debug("where:", exc_info=error)
        self.journal.record("run_end", exit_code=exits.FAILED, reason=why, traceback=where)
        return exits.FAILED

    def _interrupted(self, stop: Interrupted) -> int:
        self._preemption.say_received(stop.number)
        self.job.withdraw()
        code = exits.of_stop(stop.number, self.rules.preempted_code)
        self.journal.record("run_end", exit_code=code, reason=f"stopped by {stop.number.name}")
        return code

    def _ended(self, record: Record) -> int:
        self._stopping.stop(record.reason)
        if record.exit_code and record.node and record.node != self.node:
            logger.error(
                "the job ends with exit code %d, node %s says: %s",
                record.exit_code,
                record.node,
                record.reason,
            )
        self.journal.record("run_end", exit_code=record.exit_code, reason=record.reason)
        return record.exit_code
