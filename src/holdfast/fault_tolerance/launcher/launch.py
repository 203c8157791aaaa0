"""Puts one launcher together: directories, journal, monitor, store and driver; and takes it apart again.

Whatever happens in between, at the end the monitor is gone, the board directory removed and the journal flushed.
"""

from __future__ import annotations

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
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from holdfast.health.cards import LINK_DOWN
from holdfast.health.checks import Wanted
from holdfast.in_time import TooLate, within
from holdfast.incidents.suspicions import FORGIVEN_AFTER
from holdfast.journal.run_dir import lock_run_dir, prepare_run_dir
from holdfast.journal.writer import Journal

from ..board import BoardUnavailable, Limits
from ..errors import HoldfastError
from ..monitor.control import ControlPage
from ..monitor.control import Settings as MonitorSettings
from ..processes import proc
from ..timeouts.effective_timeouts import Advice, configured_timeouts, describe
from . import console, store_host
from .command_line.checks import NO_ID, make_log_dir
from .command_line.ft_options import EXCLUDE
from .command_line.options import first_after_script
from .command_line.torch_options import rdzv_settings
from .control.messages import Append
from .control.records import FAILURES, Member, Settings
from .driver import Driver
from .exit_codes import USAGE, Outcome, of_stop
from .inbox import Inbox, Interrupted
from .incidents import Incidents
from .local_ranks import LocalRanks
from .monitor_keeper import MonitorKeeper
from .node_health import NodeHealth
from .rank_store import RankStores
from .ranks import orphans
from .ranks.boards import CycleBoards, lock_directory, private_directory, remove_stale
from .ranks.output import HEALTH_PORT, WATCHDOG, CycleLog
from .ranks.rank_environment import RankEnvironment
from .ranks.start import RankStarter
from .rendezvous import LOOPBACK, StoreUnreachable, meet, parameters_of
from .store import LocalStore, StoreClient, StoreGone
from .warm.plan import script_text
from .warm.pool import Ahead

if TYPE_CHECKING:
    from .command_line.ft_options import LauncherOptions

logger = logging.getLogger("holdfast.launcher")
IMPORTS, IMPORTS_OF_SEVERAL = 120.0, 5.0
"""Seconds for imports ahead of the first ranks, in jobs of one node and of several."""
EARLIER_JOBS, RECALLED = 5.0, 1 << 20
"""Seconds to read the journals of earlier jobs, and bytes at the end of each that are read."""
JOIN_TIMEOUT, LAST_CALL = 600.0, 30.0
"""Seconds; torch's defaults of `join_timeout` and `last_call_timeout` in --rdzv-conf."""
FIRST_SECONDS = 30.0
"""Seconds in which a script has imported torch and read its command line."""
DEFAULT_PORT = 29500
"""torchrun's default for --master-port."""


def run(options: LauncherOptions, inbox: Inbox, ahead: Ahead) -> int:
    """Run the job; returns the launcher's exit code.

    `inbox` has the signals that came until now, `ahead` the zygote if there is one.
    """
    node = socket.gethostname()
    if not options.torch.is_one_node:
        # Several launchers of one job may share a machine; a pid may come back (:func:`.rendezvous.register`).
        node = f"{node}:{os.getpid()}"
    console.set_up(options.resolved.config.log_level, options.launcher_log, node)
    for warning in options.warnings:
        logger.warning("%s", warning)
    inbox.handle(signal.Signals[name] for name in options.torch.signals_to_handle.split(","))
    try:
        with ExitStack() as stack:
            return _serve(options, node, inbox, ahead, stack)
    except Interrupted as stop:  # before any rank was started
        console.received(stop.number)
        return of_stop(stop.number, options.preempted_exit_code)
    except (BoardUnavailable, StoreUnreachable) as error:
        logger.error("%s", error)
        return (Outcome.NO_BOARDS if isinstance(error, BoardUnavailable) else Outcome.UNREACHABLE).code
    finally:
        console.flush()


def _serve(options: LauncherOptions, node: str, inbox: Inbox, ahead: Ahead, stack: ExitStack) -> int:
    """Make the parts of this launcher, and run the driver. Each part closes itself when `stack` unwinds."""
    given = options.torch
    with inbox.interruptible():
        pass  # a signal that came during the imports raises here: nothing is made
    if given.log_dir is not None:
        make_log_dir(given.log_dir)
    fresh_name = time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:6]
    run_name = fresh_name if given.rdzv_id == NO_ID else given.rdzv_id
    run_id = run_name if given.is_one_node else given.rdzv_id
    own = lock_run_dir(prepare_run_dir(options.run_dir, run_name, logger.warning), node, logger.warning)
    stack.callback(own.close)
    orphans.adopt()
    stack.callback(orphans.end_managers)
    journal = Journal(own.run_dir, node)
    stack.callback(journal.close)
    at_exit = stack.enter_context(ExitStack())
    board_dir, control, monitor = _supervise(options, inbox, journal, stack)
    health = NodeHealth(_wanted(options, own.run_dir, node), options.resolved.config, journal, inbox.post)
    stack.callback(health.close)
    settle(given, own.run_dir, board_dir)
    with inbox.interruptible():  # it may wait for the node that hosts the store
        store, me, is_host = _join(options, node, run_id, inbox, health, journal)
    stack.callback(store.close)
    if is_host and isinstance(store, StoreClient):
        _recall_suspects(store, own.run_dir)

    settings, limits = _settings(options, me, is_host), _limits(options)
    boards = CycleBoards(board_dir, limits)
    at_once = b"torch" in script_text(given.training_script)
    # A fork takes 10 ms, and shares the zygote's memory.
    fork = partial(ahead.fork_store_host, store_host.__file__)
    stores = RankStores(me.address, inbox, at_once=at_once, fork=fork)
    stack.callback(stores.close)
    cycle_log = None
    if options.per_cycle_applog_prefix is not None:
        cycle_log = CycleLog(os.path.abspath(options.per_cycle_applog_prefix), node, journal.record)
        stack.callback(cycle_log.close)
    health.store = shared = store if isinstance(store, StoreClient) else None
    ranks = LocalRanks(
        settings,
        run_id,
        options.resolved.config.safety_factor,
        inbox=inbox,
        starter=RankStarter(RankEnvironment(options, run_id, own.run_dir, boards), ahead, cycle_log),
        boards=boards,
        control=control,
        monitor=monitor,
        journal=journal,
        incidents=Incidents(boards, journal, own.run_dir, shared, inbox.post, health.notes),
        advice=Advice(options.resolved),
        ahead=ahead,
        rank_stores=stores,
        health=health,
    )
    driver = Driver(settings, inbox, store, stores, ranks, journal, health)
    if options.metrics_file is not None or options.metrics_port is not None:
        from .exporter import Exporter  # a launcher starts without it

        stack.callback(Exporter(options, run_id, boards, driver, journal).close)
    if not settings.checks_health:
        health.take_first()

    _announce(run_id, own.run_dir, describe(limits), (given.least_nodes, given.most_nodes), me.ranks, journal)
    at_exit.callback(journal.record, "launcher_exit")  # almost the last that it does
    ahead.attach(inbox, journal.record, me.ranks)
    stack.callback(ahead.close)  # before the inbox and the journal are gone
    _wait_for_imports(options, inbox, ahead, journal)
    began = time.monotonic()
    code = driver.run()
    if code == USAGE and time.monotonic() - began < FIRST_SECONDS:
        _hint_at_order(given)
    return code


def _hint_at_order(given: SimpleNamespace) -> None:
    """The script refused its command line, as argparse does: was an option meant for this launcher?"""
    if flag := first_after_script(given.training_script_args):
        logger.warning(
            "%s was passed to %s, as all that follows the script: options of ft_launcher belong before it",
            flag,
            os.path.basename(given.training_script),
        )


def _supervise(
    options: LauncherOptions, inbox: Inbox, journal: Journal, stack: ExitStack
) -> tuple[str, ControlPage, MonitorKeeper]:
    """The directory of the boards, and the monitor, which watches it: whatever ends this launcher from here on, the
    monitor removes the directory and ends the ranks."""
    config = options.resolved.config
    directory = private_directory(int(options.torch.nproc_per_node))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    with suppress(OSError):  # no room for one more file: then no other launcher will remove the directory
        stack.callback(os.close, lock_directory(directory))
    remove_stale(os.path.dirname(directory))
    control = ControlPage(directory)
    stack.callback(control.close)
    settings = MonitorSettings(
        directory,
        config.workload_check_interval,
        config.rank_termination_signal,
        grace=options.workers_stop_timeout,
        early_detection=options.early_detection,
        warm_up=config.num_warmup_iterations,
    )
    monitor = MonitorKeeper(
        settings, control, inbox, lambda why: journal.record("monitor_replaced", reason=why)
    )
    monitor.open()
    stack.callback(monitor.close)
    return directory, control, monitor


def _limits(options: LauncherOptions) -> Limits:
    resolved = options.resolved
    counts = not options.ignore_optimizer_steps
    return configured_timeouts(
        resolved.config,
        initial_set_by_user=resolved.is_set("initial_rank_heartbeat_timeout"),
        subsequent_set_by_user=counts and resolved.is_set("rank_heartbeat_timeout"),
    )


def _wait_for_imports(options: LauncherOptions, inbox: Inbox, ahead: Ahead, journal: Journal) -> None:
    """Before the first ranks. Other nodes wait for this one, and it has not registered yet."""
    if ahead.cold:
        return
    try:
        with inbox.interruptible():
            ahead.until_ready(IMPORTS if options.torch.is_one_node else IMPORTS_OF_SEVERAL)
    except Interrupted as stop:
        code = of_stop(stop.number, options.preempted_exit_code)
        journal.record("run_end", exit_code=code, reason=f"stopped by {stop.number.name}")
        raise


def _announce(
    run_id: str, run_dir: str, limits: str, nodes: tuple[int, int], ranks: int, journal: Journal
) -> None:
    """The start of this launcher's part of the job, for the journal and the log."""

    def run_start() -> dict[str, Any]:  # on the journal's thread: redaction is slow to import
        from holdfast.incidents.report.redaction import redacted_arguments

        argv = redacted_arguments(sys.argv[1:], os.environ)
        return {"run_id": run_id, "argv": argv, "limits": limits, "nodes": list(nodes), "nproc": ranks}

    journal.defer("run_start", run_start, **proc.identity())
    count = f"{ranks} rank{'s' if ranks > 1 else ''} on this node"
    logger.info("%s; limits %s; journal in %s", count, limits, run_dir)


def _join(
    options: LauncherOptions, node: str, run_id: str, inbox: Inbox, health: NodeHealth, journal: Journal
) -> tuple[LocalStore | StoreClient, Member, bool]:
    """The job's store, this node in it, and whether this launcher hosts the store. Raises StoreUnreachable."""
    given = options.torch
    order = given.node_rank if given.has_node_rank else -1  # with c10d, too, it orders the nodes
    if order < 0 and options.resolved.config.use_infra_group_rank:
        numbers = (os.environ.get(name, "") for name in ("SLURM_PROCID", "GROUP_RANK"))
        order = next((int(number) for number in numbers if number.isdecimal()), -1)
    domain = options.node_domain or ("" if given.is_one_node else health.domain())
    if domain or given.is_one_node or not options.resolved.config.segment:
        domain = domain or socket.gethostname()
    else:
        text = "segment: the NVLink domain of this node is not known: all such nodes count as one domain"
        logger.warning("%s. Give --ft-node-domain", text)
    me = Member(node, int(given.nproc_per_node), LOOPBACK, order=order, role=given.role, domain=domain)
    if given.is_one_node:
        return LocalStore(), me, True
    nodes = (given.least_nodes, given.most_nodes)
    parameters = parameters_of(given, nodes, run_id, rdzv_settings(given.rdzv_conf))
    try:
        meeting = meet(parameters, node)
    except StoreUnreachable as lost:
        journal.record("job_lost", reason=str(lost), host="")
        journal.record("run_end", exit_code=Outcome.UNREACHABLE.code, reason=str(lost))
        raise
    client = StoreClient(meeting.store, meeting.connect, meeting.endpoint, inbox.wake)
    return client, replace(me, node=meeting.name, address=meeting.address), meeting.is_host


def _recall_suspects(store: StoreClient, run_dir: str) -> None:
    """Begin the job's log of failures with what earlier jobs in this run directory made suspect.

    Does not cover: run directories that are not shared, in which only this node's own reports are.
    """
    from holdfast.journal.reader import journal_files, newest_events

    from .control.suspects import of_earlier_jobs

    def read() -> list[str]:
        paths = [path for path in journal_files(run_dir, of_ranks=False) if os.path.getmtime(path) > since]
        events = [each for path in paths for each in newest_events(path, {"node_suspected"}, RECALLED)]
        return of_earlier_jobs(sorted(events, key=lambda event: event.t), now)

    now = time.time()
    since = now - FORGIVEN_AFTER

    with suppress(TooLate, OSError, HoldfastError, StoreGone):  # a job starts without it, too
        for line in within(EARLIER_JOBS, read):
            store.ask(Append(FAILURES, line), EARLIER_JOBS)


def _settings(options: LauncherOptions, me: Member, is_host: bool) -> Settings:
    given, config = options.torch, options.resolved.config
    timeouts = rdzv_settings(given.rdzv_conf)
    measures = config.max_no_progress_cycles > 0 or options.restarts_reset_on_progress
    return Settings(
        me,
        least=given.least_nodes,
        most=given.most_nodes,
        is_host=is_host,
        is_alone=given.is_one_node,
        store="" if given.is_one_node else given.rdzv_endpoint,
        max_restarts=given.max_restarts,
        reset_on_progress=options.restarts_reset_on_progress,
        node_timeout=options.node_timeout,
        join_timeout=float(timeouts.get("join_timeout", JOIN_TIMEOUT)),
        last_call=float(timeouts.get("last_call_timeout", LAST_CALL)),
        term_timeout=_or_never(options.term_timeout),
        stop_timeout=options.workers_stop_timeout,
        exit_timeout=0.0 if config.install_exception_hook else _or_never(options.exit_timeout),
        finished_timeout=_or_never(options.finished_timeout),
        preempted_code=options.preempted_exit_code,
        iteration_file=config.checkpoint_iteration_file or "" if measures else "",
        least_progress=config.min_progress_iterations,
        most_stalled=max(0, config.max_no_progress_cycles),
        same_failure_limit=options.same_failure_limit,
        exclude_suspects=options.exclude_suspects,
        segment=1 if given.is_one_node else config.segment or 1,
        checks_health=not given.is_one_node,
        exclude_sick=options.health_action == EXCLUDE,
        no_restart_code=options.no_restart_exit_code,
    )


def _wanted(options: LauncherOptions, run_dir: str, node: str) -> Wanted:
    """What is to be checked of this node."""
    config = options.resolved.config
    return Wanted(
        driver=proc.nvidia_driver(),
        card_states=config.link_state_path_template if config.enable_nic_healthcheck else None,
        link_down=(config.link_down_path_template or LINK_DOWN) if config.enable_nic_monitor else None,
        storage_paths=tuple(
            path.strip() for path in (config.storage_healthcheck_path or "").split(",") if path
        ),
        write_path=options.health_write_path or "",
        distributed_storage=config.enable_dist_storage_healthcheck,
        command=options.health_command or "",
        run_dir=run_dir,
        node=node,
        seconds=options.health_timeout,
    )


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def needs_torch(given: SimpleNamespace) -> bool:
    """Whether the launcher itself uses torch: for several nodes, or for what a few options turn on."""
    return (
        not given.is_one_node
        or given.logs_specs is not None
        or given.numa_binding is not None
        or os.environ.get(WATCHDOG) == "1"
        or HEALTH_PORT in os.environ
    )


def settle(given: SimpleNamespace, run_dir: str, board_dir: str) -> None:
    """Change torchrun's options in place, and the ranks' environment, where torchrun would only warn, or leave
    something behind.

    Args:
        run_dir: It stays.
        board_dir: It is removed with the launcher.
    """
    if given.log_dir is None:
        # torchrun would leave a folder in the shared temporary directory.
        streams = given.redirects != "0" or given.tee != "0"
        given.log_dir = os.path.join(run_dir if streams else board_dir, "logs")
    if given.nproc_per_node != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, without its warning
    if not given.is_one_node and given.rdzv_backend == "static":
        # In torch's static rendezvous a node does not learn that another failed: the same addresses, by c10d.
        port = given.master_port or DEFAULT_PORT
        given.rdzv_endpoint = given.rdzv_endpoint or f"{given.master_addr}:{port}"
        is_host = f"is_host={int(given.node_rank == 0)}"
        given.rdzv_conf = f"{given.rdzv_conf},{is_host}" if given.rdzv_conf else is_host
    given.rdzv_backend = "c10d"
    given.rdzv_endpoint = given.rdzv_endpoint or "localhost:0"
