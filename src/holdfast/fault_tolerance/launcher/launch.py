"""Puts one launcher together: directories, journal, monitor, job and agent; and takes it apart again.

Whatever happens in between, at the end the monitor is gone, the board directory removed and the journal flushed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, determine_local_world_size

from holdfast.journal.claim import claim
from holdfast.journal.run_dir import prepare_run_dir
from holdfast.journal.writer import Journal

from ..board import BoardUnavailable
from ..config_sources import ResolvedConfig
from ..monitor.control import ControlPage
from . import console, torch_arguments
from .agent.agent import Agent
from .agent.contradictions import Advice
from .agent.surroundings import Rules
from .command_line.log_dir import make_log_dir
from .command_line.rendezvous_options import NO_ID
from .inbox import Inbox, Interrupted
from .limits_in_force import describe, limits_of
from .monitor_keeper import MonitorKeeper
from .nodes.job import Job, JobLost, JobRendezvous, SingleNodeJob
from .ranks import exits, orphans, stale
from .ranks.boards import CycleBoards, private_directory
from .ranks.environment import SupervisedLogs, command
from .ranks.flight_recorder import flight_recorder
from .ranks.prologue_path import with_prologue
from .warm.ahead import Ahead

if TYPE_CHECKING:
    from .command_line.options import LauncherOptions

logger = logging.getLogger("holdfast.launcher")
NEW_FIELDS = ("numa_options", "duplicate_stdout_filters", "duplicate_stderr_filters", "virtual_local_rank")
"""Fields of torch's `WorkerSpec` and `LaunchConfig` since torch 2.9 (the first) and 2.10."""
RUN_SCRIPT = "import sys; from torch.distributed.run import run_script_path; run_script_path(*sys.argv[1:])"


def run(options: LauncherOptions, inbox: Inbox, ahead: Ahead) -> int:
    """Run the job; returns the launcher's exit code.

    `inbox` has the signals that came until now, `ahead` the zygote if there is one.
    """
    resolved = options.resolved
    console.set_up(resolved.config.log_level)
    for warning in options.warnings:
        logger.warning("%s", warning)
    inbox.handle(signal.Signals[name.strip()] for name in options.torch.signals_to_handle.split(","))
    try:
        return _launch(options, resolved, inbox, ahead)
    except Interrupted as stop:  # before any rank was started
        console.received(stop.number)
        return exits.of_stop(stop.number, options.preempted_exit_code)
    except BoardUnavailable as error:
        logger.error("%s", error)
        return exits.FAILED
    finally:
        console.flush()


def _launch(options: LauncherOptions, resolved: ResolvedConfig, inbox: Inbox, ahead: Ahead) -> int:
    with inbox.interruptible():
        pass  # told to stop while torch was imported: nothing is made
    if options.torch.log_dir is not None:
        make_log_dir(options.torch.log_dir)
    run_name = options.torch.rdzv_id if options.torch.rdzv_id != NO_ID else _fresh_name()
    run_dir = prepare_run_dir(options.run_dir, run_name, logger.warning)
    with ExitStack() as stack:
        own = claim(run_dir, torch_arguments.node_name(options.torch), logger.warning)
        stack.callback(own.close)
        return Launch(options, resolved, run_name, own.run_dir, inbox, ahead, stack).serve()


class Launch:
    """The parts of one launcher; each closes itself when `stack` unwinds, the last made first."""

    def __init__(
        self,
        options: LauncherOptions,
        resolved: ResolvedConfig,
        run_name: str,
        run_dir: str,
        inbox: Inbox,
        ahead: Ahead,
        stack: ExitStack,
    ) -> None:
        self._options, self._resolved, self._stack = options, resolved, stack
        self._run_name, self._run_dir = run_name, run_dir
        self._limits = limits_of(resolved, counts_steps=not options.ignore_optimizer_steps)
        self._torch = options.torch
        self._inbox, self._ahead = inbox, ahead
        orphans.adopt()
        self._one_node = torch_arguments.is_one_node(self._torch)
        self._node = torch_arguments.node_name(self._torch)
        self._journal = Journal(run_dir, self._node)
        stack.callback(self._journal.close)
        self._board_dir = private_directory(determine_local_world_size(self._torch.nproc_per_node))
        stack.callback(shutil.rmtree, self._board_dir, ignore_errors=True)
        with suppress(OSError):  # no room for one more file: then nobody will remove the directory for us
            stack.callback(os.close, stale.own(self._board_dir))
        stale.sweep(os.path.dirname(self._board_dir))
        # At once: whatever ends this launcher from here on, the monitor removes the directory and ends the ranks.
        self._control = ControlPage(self._board_dir)
        stack.callback(self._control.close)
        self._monitor = self._start_monitor()
        stack.callback(self._monitor.close)

    def serve(self) -> int:
        """Make the parts, run the agent."""
        self._node_rank = torch_arguments.settle(self._torch, self._run_dir, self._board_dir)
        config, program, args = config_from_args(self._torch)
        config.run_id = (
            self._run_name if self._torch.rdzv_id == NO_ID and self._one_node else self._torch.rdzv_id
        )
        try:
            with self._inbox.interruptible():  # it may wait for the node that hosts the rendezvous
                job = self._job(config)
        except JobLost as lost:
            logger.error("%s", lost)
            self._journal.record("job_lost", reason=str(lost), host="")
            self._journal.record("run_end", exit_code=exits.FAILED, reason=str(lost))
            return exits.FAILED
        self._stack.callback(job.close)
        agent = self._agent(config, program, args, job)
        self._announce(config)
        self._ahead.attach(self._inbox, self._journal.record, config.nproc_per_node)
        self._stack.callback(self._ahead.close)  # before the inbox and the journal are gone
        if self._ahead.pool:
            with self._inbox.interruptible():
                self._ahead.pool.zygotes.until_ready()
        return agent.serve()

    def _job(self, config: LaunchConfig) -> Job:
        if self._one_node:
            return SingleNodeJob()
        from .nodes.store_job import StoreJob

        parameters = RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
        limit = self._options.node_timeout
        job = StoreJob(parameters, self._node, self._node_rank, limit, self._journal.record)
        job.start_watch(self._inbox.post)
        return job

    def _start_monitor(self) -> MonitorKeeper:
        cfg = self._resolved.config
        monitor = MonitorKeeper(
            self._board_dir,
            self._control,
            self._inbox,
            check_interval=cfg.workload_check_interval,
            termination=cfg.rank_termination_signal,
            patience=self._options.workers_stop_timeout,
            early_detection=self._options.early_detection,
            on_replaced=lambda why: self._journal.record("monitor_replaced", reason=why),
        )
        monitor.open()
        return monitor

    def _agent(self, config: LaunchConfig, program: object, args: list[str], job: Job) -> Agent:
        boards = CycleBoards(self._board_dir, self._limits)
        job.look_for_stops(boards.stops, self._inbox.post)
        entrypoint, arguments = self._command(program, args)
        spec = WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=entrypoint,
            args=tuple(arguments),
            rdzv_handler=JobRendezvous(job, config.run_id),
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            event_log_handler=config.event_log_handler,
            **{name: getattr(config, name) for name in NEW_FIELDS if hasattr(config, name)},
        )
        assert config.logs_specs is not None
        logs = SupervisedLogs(config.logs_specs, lambda local: self._variables(local, boards, job))
        rules = Rules(
            max_restarts=config.max_restarts,
            reset_on_progress=self._options.restarts_reset_on_progress,
            term_timeout=float("inf") if self._options.term_timeout is None else self._options.term_timeout,
            stop_timeout=self._options.workers_stop_timeout,
            preempted_code=self._options.preempted_exit_code,
            safety_factor=self._resolved.config.safety_factor,
        )
        return Agent(
            spec,
            logs,
            config.log_line_prefix_template,
            node=self._node,
            rules=rules,
            job=job,
            boards=boards,
            control=self._control,
            monitor=self._monitor,
            journal=self._journal,
            inbox=self._inbox,
            advice=Advice(self._resolved),
            ahead=self._ahead,
            run_dir=self._run_dir,
        )

    def _command(self, program: object, args: list[str]) -> tuple[str, list[str]]:
        if callable(
            program
        ):  # --run-path: torch would call a function in a forked interpreter; a fresh one does it
            return sys.executable, ["-u", "-c", RUN_SCRIPT, *args]
        return command(str(program), args, is_python=not self._torch.no_python)

    def _variables(self, local_rank: int, boards: CycleBoards, job: Job) -> dict[str, str]:
        """Holdfast's additions to a rank's environment."""
        return {
            "HOLDFAST_OPTIMIZER_STEPS": "" if self._options.ignore_optimizer_steps else "1",
            # One number for the whole job, also for restarts that only let a node join: log folders stay apart.
            "TORCHELASTIC_RESTART_COUNT": str(job.record.cycle),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": self._torch.signals_to_handle,
            "FT_RANK_MONITOR_IPC_SOCKET": boards.path(local_rank),
            "HOLDFAST_CONFIG": json.dumps(self._resolved.config.to_dict()),
            "HOLDFAST_RUN_DIR": self._run_dir,
            "HOLDFAST_ERROR_FILE": boards.error_path(local_rank),
            "HOLDFAST_STDERR_FILE": boards.stderr_path(local_rank),
            "HOLDFAST_LAUNCHER_PID": str(os.getpid()),
            **flight_recorder(os.environ),
            **({"HOLDFAST_MODULES_FILE": boards.modules_path} if local_rank == 0 else {}),
            "PYTHONPATH": with_prologue(os.environ.get("PYTHONPATH")),
        }

    def _announce(self, config: LaunchConfig) -> None:
        nodes = config.min_nodes, config.max_nodes
        limits = describe(self._limits)
        self._journal.record(
            "run_start",
            run_id=config.run_id,
            argv=sys.argv[1:],
            limits=limits,
            nodes=list(nodes),
            nproc=config.nproc_per_node,
        )
        count = config.nproc_per_node
        ranks = f"{count} rank{'s' if count > 1 else ''} on this node"
        logger.info("%s; limits %s; journal in %s", ranks, limits, self._run_dir)


def _fresh_name() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
