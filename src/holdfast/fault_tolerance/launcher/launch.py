"""Puts one launcher together: directories, journal, monitor, store and driver; and takes it apart again.

Whatever happens in between, at the end the monitor is gone, the board directory removed and the journal flushed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore
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
from .command_line.log_dir import make_log_dir
from .command_line.rendezvous_options import NO_ID
from .control.node import Settings
from .control.records import Member
from .driver import Driver, Woken
from .inbox import Inbox, Interrupted
from .incidents import Incidents
from .limit_advice import Advice, describe, limits_of
from .local_ranks import LocalRanks
from .monitor_keeper import MonitorKeeper
from .rank_store import RankStores
from .ranks import exits, orphans, stale
from .ranks.boards import CycleBoards, private_directory
from .ranks.flight_recorder import flight_recorder
from .ranks.prologue_path import with_prologue
from .ranks.start import RankStarter, command
from .rendezvous import Endpoint, StoreUnreachable, endpoint_of, meet, prefix_of
from .store import LocalStore, StoreClient
from .warm.ahead import Ahead

if TYPE_CHECKING:
    from .command_line.options import LauncherOptions

logger = logging.getLogger("holdfast.launcher")
LOOPBACK = "127.0.0.1"
IMPORTS, IMPORTS_OF_SEVERAL = 120.0, 5.0
"""Seconds for imports ahead of the first ranks, in jobs of one node and of several."""
JOIN_TIMEOUT, LAST_CALL = 600.0, 30.0
"""Seconds; torch's defaults of `join_timeout` and `last_call_timeout` in --rdzv-conf."""
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
    node = torch_arguments.node_name(options.torch)
    with ExitStack() as stack:
        own = claim(run_dir, node, logger.warning)
        stack.callback(own.close)
        return Launch(options, resolved, run_name, own.run_dir, node, inbox, ahead, stack).serve()


class Launch:
    """The parts of one launcher; each closes itself when `stack` unwinds, the last made first."""

    def __init__(
        self,
        options: LauncherOptions,
        resolved: ResolvedConfig,
        run_name: str,
        run_dir: str,
        node: str,
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
        self._node = node
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
        """Make the parts, and run the driver."""
        self._node_rank = torch_arguments.settle(self._torch, self._run_dir, self._board_dir)
        config, program, args = config_from_args(self._torch)
        config.run_id = (
            self._run_name if self._torch.rdzv_id == NO_ID and self._one_node else self._torch.rdzv_id
        )
        try:
            with self._inbox.interruptible():  # it may wait for the node that hosts the store
                store, me, is_host = self._join(config)
        except StoreUnreachable as lost:
            logger.error("%s", lost)
            self._journal.record("job_lost", reason=str(lost), host="")
            self._journal.record("run_end", exit_code=exits.FAILED, reason=str(lost))
            return exits.FAILED
        self._stack.callback(store.close)
        driver = self._driver(config, self._settings(config, me, is_host), store, program, args)
        self._announce(config)
        self._ahead.attach(self._inbox, self._journal.record, config.nproc_per_node)
        self._stack.callback(self._ahead.close)  # before the inbox and the journal are gone
        if self._ahead.pool:
            try:
                with self._inbox.interruptible():
                    # Other nodes wait for this one, and it has not registered yet.
                    self._ahead.pool.zygotes.until_ready(IMPORTS if self._one_node else IMPORTS_OF_SEVERAL)
            except Interrupted as stop:
                code = exits.of_stop(stop.number, self._options.preempted_exit_code)
                self._journal.record("run_end", exit_code=code, reason=f"stopped by {stop.number.name}")
                raise
        return driver.run()

    def _join(self, config: LaunchConfig) -> tuple[LocalStore | StoreClient, Member, bool]:
        """The job's store, this node in it, and whether this launcher hosts the store."""
        me = Member(self._node, config.nproc_per_node, LOOPBACK, order=self._order(), role=config.role)
        if self._one_node:
            return LocalStore(), me, True
        parameters = RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
        where = endpoint_of(parameters)
        meeting = meet(parameters, self._node)
        prefix, endpoint = prefix_of(parameters), Endpoint(LOOPBACK, where.port) if meeting.is_host else where
        client = StoreClient(
            PrefixStore(prefix, meeting.store),
            lambda: PrefixStore(prefix, meeting.store.clone()),  # type: ignore[attr-defined]  # torch's stubs
            endpoint,
            lambda: self._inbox.post(Woken()),
        )
        return client, replace(me, node=meeting.name, address=meeting.address), meeting.is_host

    def _settings(self, config: LaunchConfig, me: Member, is_host: bool) -> Settings:
        options, timeouts = self._options, config.rdzv_configs
        return Settings(
            me,
            least=config.min_nodes,
            most=config.max_nodes,
            is_host=is_host,
            is_alone=self._one_node,
            store="" if self._one_node else config.rdzv_endpoint,
            max_restarts=config.max_restarts,
            reset_on_progress=options.restarts_reset_on_progress,
            node_timeout=options.node_timeout,
            join_timeout=float(timeouts.get("join_timeout", JOIN_TIMEOUT)),
            last_call=float(timeouts.get("last_call_timeout", LAST_CALL)),
            term_timeout=math.inf if options.term_timeout is None else options.term_timeout,
            stop_timeout=options.workers_stop_timeout,
            preempted_code=options.preempted_exit_code,
        )

    def _order(self) -> int:
        """The node's number, as the user or the scheduler gave it; -1: not given."""
        if self._node_rank >= 0:
            return self._node_rank
        given = (os.environ.get(name, "") for name in ("SLURM_PROCID", "GROUP_RANK"))
        return next((int(number) for number in given if number.isdecimal()), -1)

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

    def _driver(
        self,
        config: LaunchConfig,
        settings: Settings,
        store: LocalStore | StoreClient,
        program: object,
        args: list[str],
    ) -> Driver:
        boards, inbox, journal = CycleBoards(self._board_dir, self._limits), self._inbox, self._journal
        stores = RankStores(settings.me.address)
        self._stack.callback(stores.close)
        incidents = Incidents(
            boards,
            journal,
            self._run_dir,
            store if isinstance(store, StoreClient) else None,
            lambda event: inbox.post(Woken(event)),
            lambda event: inbox.post(Woken(event)),
        )
        entrypoint, arguments = self._command(program, args)
        starter = RankStarter(
            config,
            entrypoint,
            arguments,
            lambda local, cycle: self._variables(local, cycle, boards),
            self._ahead.pool,
        )
        ranks = LocalRanks(
            settings,
            config.run_id,
            self._resolved.config.safety_factor,
            inbox=inbox,
            starter=starter,
            boards=boards,
            control=self._control,
            monitor=self._monitor,
            journal=journal,
            incidents=incidents,
            advice=Advice(self._resolved),
            ahead=self._ahead,
        )
        return Driver(settings, inbox, store, stores, ranks, journal)

    def _command(self, program: object, args: list[str]) -> tuple[str, list[str]]:
        if callable(
            program
        ):  # --run-path: torch would call a function in a forked interpreter; a fresh one does it
            return sys.executable, ["-u", "-c", RUN_SCRIPT, *args]
        return command(str(program), args, is_python=not self._torch.no_python)

    def _variables(self, local_rank: int, cycle: int, boards: CycleBoards) -> dict[str, str]:
        """Holdfast's additions to a rank's environment."""
        return {
            "HOLDFAST_OPTIMIZER_STEPS": "" if self._options.ignore_optimizer_steps else "1",
            # One number for the whole job, also for restarts that only let a node join: log folders stay apart.
            "TORCHELASTIC_RESTART_COUNT": str(cycle),
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
