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
import socket
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from holdfast.journal.run_dir import lock_run_dir, prepare_run_dir
from holdfast.journal.writer import Journal

from ..board import BoardUnavailable
from ..monitor.control import ControlPage
from ..timeouts.effective_timeouts import Advice, configured_timeouts, describe
from . import console, store_host
from .command_line.checks import NO_ID, rdzv_settings
from .command_line.log_paths import make_log_dir
from .control.node import Settings
from .control.records import Member
from .driver import Driver
from .exit_codes import Outcome, of_stop
from .inbox import Inbox, Interrupted
from .incidents import Incidents
from .local_ranks import LocalRanks
from .monitor_keeper import MonitorKeeper
from .rank_store import Host, RankStores
from .ranks import orphans
from .ranks.boards import CycleBoards, lock_directory, private_directory, remove_stale
from .ranks.output import HEALTH_PORT, WATCHDOG, CycleLog
from .ranks.prologue_path import flight_recorder, with_prologue
from .ranks.start import RankStarter
from .rendezvous import Endpoint, StoreUnreachable, endpoint_of, meet, parameters_of, prefix_of
from .store import LocalStore, StoreClient
from .warm.plan import script_text
from .warm.pool import Ahead

if TYPE_CHECKING:
    from .command_line.options import LauncherOptions

logger = logging.getLogger("holdfast.launcher")
LOOPBACK = "127.0.0.1"
IMPORTS, IMPORTS_OF_SEVERAL = 120.0, 5.0
"""Seconds for imports ahead of the first ranks, in jobs of one node and of several."""
JOIN_TIMEOUT, LAST_CALL = 600.0, 30.0
"""Seconds; torch's defaults of `join_timeout` and `last_call_timeout` in --rdzv-conf."""
DEFAULT_PORT = 29500
"""torchrun's default for --master-port."""


def run(options: LauncherOptions, inbox: Inbox, ahead: Ahead) -> int:
    """Run the job; returns the launcher's exit code.

    `inbox` has the signals that came until now, `ahead` the zygote if there is one.
    """
    console.set_up(options.resolved.config.log_level, options.launcher_log, node_name(options.torch))
    for warning in options.warnings:
        logger.warning("%s", warning)
    inbox.handle(signal.Signals[name.strip()] for name in options.torch.signals_to_handle.split(","))
    try:
        return _launch(options, inbox, ahead)
    except Interrupted as stop:  # before any rank was started
        console.received(stop.number)
        return of_stop(stop.number, options.preempted_exit_code)
    except BoardUnavailable as error:
        logger.error("%s", error)
        return Outcome.NO_BOARDS.code
    finally:
        console.flush()


def _launch(options: LauncherOptions, inbox: Inbox, ahead: Ahead) -> int:
    with inbox.interruptible():
        pass  # a signal that came during the imports raises here: nothing is made
    if options.torch.log_dir is not None:
        make_log_dir(options.torch.log_dir)
    run_name = options.torch.rdzv_id if options.torch.rdzv_id != NO_ID else _fresh_name()
    run_dir = prepare_run_dir(options.run_dir, run_name, logger.warning)
    node = node_name(options.torch)
    with ExitStack() as stack:
        own = lock_run_dir(run_dir, node, logger.warning)
        stack.callback(own.close)
        return Launch(options, run_name, own.run_dir, node, inbox, ahead, stack).serve()


class Launch:
    """The parts of one launcher; each closes itself when `stack` unwinds, the last made first."""

    def __init__(
        self,
        options: LauncherOptions,
        run_name: str,
        run_dir: str,
        node: str,
        inbox: Inbox,
        ahead: Ahead,
        stack: ExitStack,
    ) -> None:
        self._options, self._resolved, self._stack = options, options.resolved, stack
        self._run_name, self._run_dir = run_name, run_dir
        self._limits = configured_timeouts(
            options.resolved.config,
            initial_set_by_user=options.resolved.is_set("initial_rank_heartbeat_timeout"),
            subsequent_set_by_user=not options.ignore_optimizer_steps
            and options.resolved.is_set("rank_heartbeat_timeout"),
        )
        self._torch = options.torch
        self._inbox, self._ahead = inbox, ahead
        orphans.adopt()
        self._one_node = is_one_node(self._torch)
        self._node = node
        self._journal = Journal(run_dir, self._node)
        stack.callback(self._journal.close)
        self._board_dir = private_directory(int(self._torch.nproc_per_node))
        stack.callback(shutil.rmtree, self._board_dir, ignore_errors=True)
        with suppress(OSError):  # no room for one more file: then no other launcher will remove the directory
            stack.callback(os.close, lock_directory(self._board_dir))
        remove_stale(os.path.dirname(self._board_dir))
        # At once: whatever ends this launcher from here on, the monitor removes the directory and ends the ranks.
        self._control = ControlPage(self._board_dir)
        stack.callback(self._control.close)
        self._monitor = self._start_monitor()
        stack.callback(self._monitor.close)

    def serve(self) -> int:
        """Make the parts, and run the driver."""
        self._node_rank = settle(self._torch, self._run_dir, self._board_dir)
        given_id = self._torch.rdzv_id
        self._run_id = self._run_name if given_id == NO_ID and self._one_node else given_id
        try:
            with self._inbox.interruptible():  # it may wait for the node that hosts the store
                store, me, is_host = self._join()
        except StoreUnreachable as lost:
            logger.error("%s", lost)
            self._journal.record("job_lost", reason=str(lost), host="")
            self._journal.record("run_end", exit_code=Outcome.UNREACHABLE.code, reason=str(lost))
            return Outcome.UNREACHABLE.code
        self._stack.callback(store.close)
        driver = self._driver(self._settings(me, is_host), store)
        self._announce()
        self._ahead.attach(self._inbox, self._journal.record, me.ranks)
        self._stack.callback(self._ahead.close)  # before the inbox and the journal are gone
        if not self._ahead.cold:
            try:
                with self._inbox.interruptible():
                    # Other nodes wait for this one, and it has not registered yet.
                    self._ahead.until_ready(IMPORTS if self._one_node else IMPORTS_OF_SEVERAL)
            except Interrupted as stop:
                code = of_stop(stop.number, self._options.preempted_exit_code)
                self._journal.record("run_end", exit_code=code, reason=f"stopped by {stop.number.name}")
                raise
        return driver.run()

    def _join(self) -> tuple[LocalStore | StoreClient, Member, bool]:
        """The job's store, this node in it, and whether this launcher hosts the store."""
        given = self._torch
        me = Member(self._node, int(given.nproc_per_node), LOOPBACK, order=self._order(), role=given.role)
        if self._one_node:
            return LocalStore(), me, True
        from torch.distributed import PrefixStore

        parameters = parameters_of(given, nodes_of(given), self._run_id, rdzv_settings(given.rdzv_conf))
        where = endpoint_of(parameters)
        meeting = meet(parameters, self._node)
        host = LOOPBACK if meeting.is_host else where.host
        prefix, endpoint = prefix_of(parameters), Endpoint(host, meeting.port)
        client = StoreClient(
            PrefixStore(prefix, meeting.store),
            lambda: PrefixStore(prefix, meeting.store.clone()),  # type: ignore[attr-defined]  # torch's stubs
            endpoint,
            self._inbox.wake,
        )
        return client, replace(me, node=meeting.name, address=meeting.address), meeting.is_host

    def _settings(self, me: Member, is_host: bool) -> Settings:
        options, timeouts = self._options, rdzv_settings(self._torch.rdzv_conf)
        least, most = nodes_of(self._torch)
        cfg = self._resolved.config
        measures = cfg.max_no_progress_cycles > 0 or options.restarts_reset_on_progress
        return Settings(
            me,
            least=least,
            most=most,
            is_host=is_host,
            is_alone=self._one_node,
            store="" if self._one_node else self._torch.rdzv_endpoint,
            max_restarts=self._torch.max_restarts,
            reset_on_progress=options.restarts_reset_on_progress,
            node_timeout=options.node_timeout,
            join_timeout=float(timeouts.get("join_timeout", JOIN_TIMEOUT)),
            last_call=float(timeouts.get("last_call_timeout", LAST_CALL)),
            term_timeout=_or_never(options.term_timeout),
            stop_timeout=options.workers_stop_timeout,
            exit_timeout=0.0
            if self._resolved.config.install_exception_hook
            else _or_never(options.exit_timeout),
            finished_timeout=_or_never(options.finished_timeout),
            preempted_code=options.preempted_exit_code,
            iteration_file=cfg.checkpoint_iteration_file or "" if measures else "",
            least_progress=cfg.min_progress_iterations,
            most_stalled=max(0, cfg.max_no_progress_cycles),
            no_restart_code=options.no_restart_exit_code,
        )

    def _order(self) -> int:
        """The node's number, as the user or the scheduler gave it; -1: not given."""
        if self._node_rank >= 0 or not self._resolved.config.use_infra_group_rank:
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
            warm_up=cfg.num_warmup_iterations,
            on_replaced=lambda why: self._journal.record("monitor_replaced", reason=why),
        )
        monitor.open()
        return monitor

    def _driver(self, settings: Settings, store: LocalStore | StoreClient) -> Driver:
        boards, inbox, journal = CycleBoards(self._board_dir, self._limits), self._inbox, self._journal
        at_once = b"torch" in script_text(self._torch.training_script)
        stores = RankStores(settings.me.address, inbox, at_once=at_once, fork=self._fork_store_host)
        self._stack.callback(stores.close)
        incidents = Incidents(
            boards,
            journal,
            self._run_dir,
            store if isinstance(store, StoreClient) else None,
            inbox.post,
        )
        starter = RankStarter(
            self._torch,
            self._run_id,
            lambda local, cycle: self._variables(local, cycle, boards),
            self._ahead,
            self._cycle_log(),
        )
        ranks = LocalRanks(
            settings,
            self._run_id,
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
            rank_stores=stores,
        )
        return Driver(settings, inbox, store, stores, ranks, journal)

    def _cycle_log(self) -> CycleLog | None:
        prefix = self._options.per_cycle_applog_prefix
        if prefix is None:
            return None
        log = CycleLog(os.path.abspath(prefix), self._node, self._journal.record)
        self._stack.callback(log.close)
        return log

    def _fork_store_host(self) -> Host | None:
        """From the zygote, which has torch: in 10 ms, and with its memory shared."""
        standby = self._ahead.fork_store_host(store_host.__file__)
        return (standby.process, standby.gate) if standby else None

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

    def _announce(self) -> None:
        limits, count = describe(self._limits), int(self._torch.nproc_per_node)
        self._journal.defer("run_start", lambda: self._run_start(limits, count))
        ranks = f"{count} rank{'s' if count > 1 else ''} on this node"
        logger.info("%s; limits %s; journal in %s", ranks, limits, self._run_dir)

    def _run_start(self, limits: str, count: int) -> dict[str, Any]:
        """The fields of this event, on the journal's thread: redaction is slow to import."""
        from holdfast.incidents.report.redaction import redacted_arguments

        return {
            "run_id": self._run_id,
            "argv": redacted_arguments(sys.argv[1:], os.environ),
            "limits": limits,
            "nodes": list(nodes_of(self._torch)),
            "nproc": count,
        }


def _fresh_name() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]


def nodes_of(given: SimpleNamespace) -> tuple[int, int]:
    """The least and the greatest number of nodes."""
    least, _, most = str(given.nnodes).partition(":")
    return int(least), int(most or least)


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def is_one_node(given: SimpleNamespace) -> bool:
    """One node, and no address at which others could join."""
    return given.standalone or (nodes_of(given)[1] == 1 and not given.rdzv_endpoint)


def needs_torch(given: SimpleNamespace) -> bool:
    """Whether the launcher itself uses torch: for several nodes, or for what a few options turn on."""
    return (
        not is_one_node(given)
        or given.logs_specs is not None
        or getattr(given, "numa_binding", None) is not None
        or os.environ.get(WATCHDOG) == "1"
        or HEALTH_PORT in os.environ
    )


def node_name(given: SimpleNamespace) -> str:
    """In journals and messages. Several launchers of one job may share a machine; a pid may come back
    (:func:`.rendezvous.register`)."""
    host = socket.gethostname()
    return host if is_one_node(given) else f"{host}:{os.getpid()}"


def settle(given: SimpleNamespace, run_dir: str, board_dir: str) -> int:
    """Change torchrun's options in place, and the ranks' environment, where torchrun would only warn, or leave
    something behind.

    Args:
        run_dir: It stays.
        board_dir: It is removed with the launcher.

    Returns:
        The node rank, or -1.
    """
    if given.log_dir is None:
        # torchrun would leave a folder in the shared temporary directory.
        streams = given.redirects != "0" or given.tee != "0"
        given.log_dir = os.path.join(run_dir if streams else board_dir, "logs")
    if given.nproc_per_node != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, without its warning
    if not is_one_node(given) and given.rdzv_backend == "static":
        # In torch's static rendezvous a node does not learn that another failed: the same addresses, by c10d.
        port = given.master_port or DEFAULT_PORT
        given.rdzv_endpoint = given.rdzv_endpoint or f"{given.master_addr}:{port}"
        is_host = f"is_host={int(given.node_rank == 0)}"
        given.rdzv_conf = f"{given.rdzv_conf},{is_host}" if given.rdzv_conf else is_host
    # With c10d, too, it orders the nodes.
    node_rank = int(given.node_rank) if given.has_node_rank else -1
    given.rdzv_backend = "c10d"
    given.rdzv_endpoint = given.rdzv_endpoint or "localhost:0"
    return node_rank
