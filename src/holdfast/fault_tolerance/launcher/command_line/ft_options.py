"""The options that ``ft_launcher`` has beyond torchrun's: one table, from which parsing, help and docs are made.

Every option has all the names of its history. On the command line each hyphen of a name may be an underscore; in the
environment it is ``PET_`` and the name in capitals. Options that are settings are made from `FaultToleranceConfig`, the
others from `LauncherOptions`. Those that other releases have as flags only, and that change nothing here, follow.

Does not cover: torchrun's own options (`torch_options`), and merging (`config_sources`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

from ... import config_fields as grammar
from ...config import (
    ATTRIBUTION,
    HEALTH,
    JOURNAL,
    LAUNCHER,
    LIMITS,
    NUMA,
    PAST,
    SETTINGS,
    make_option,
    options_of,
    setting,
)
from ...config_fields import Effect, Option, Reason, optional, whole
from ...config_sources import ResolvedConfig
from ..exit_codes import DO_NOT_REQUEUE

EXCLUDE = "exclude"
_path = grammar.matching(r".*\S.*", "a path")
_text_file = grammar.matching(r".*\.prom", "a file whose name ends in .prom, which node_exporter reads")
_prefix = grammar.matching(r".*\S.*(?<!/)", "the start of a file name, like /logs/job, not a folder")


def _modules(value: str) -> tuple[str, ...]:
    if grammar.is_nothing(value):
        return ()
    names = tuple(part.strip() for part in value.split(","))
    if not all(word.isidentifier() for name in names for word in name.split(".")):
        raise ValueError("give names of modules, like torch,numpy,my.model")
    return names


@dataclass(frozen=True, kw_only=True)
class LauncherOptions:
    """A command line that is understood and checked. Times are seconds; None is no limit.

    Attributes:
        torch: torchrun's namespace with `training_script` and `training_script_args`; `nproc_per_node` is a number;
            `has_node_rank`: the node's rank counts, since it was given or the rendezvous is static; and what
            `checks.check` adds.
        resolved: The settings of supervision in force and the origin of each.
        warnings: Lines to show once at the start: what was given and has no effect.
    """

    torch: SimpleNamespace
    resolved: ResolvedConfig
    warnings: tuple[str, ...]
    # fmt: off
    cfg_path: str | None = setting(
        None, _path, "FILE", "YAML file with a 'fault_tolerance' section", LAUNCHER,
        other_names=("fault-tol-cfg-path",), more_variables=("FAULT_TOL_CFG_PATH",))
    ignore_missing_cfg: bool = setting(
        False, grammar.boolean, "", "no error when that file or its section is missing", LAUNCHER,
        other_names=("ignore-missing-fault-tol-cfg",))
    restart_policy: str = setting(
        "any-failed", grammar.restart_policy, "POLICY", "any-failed: a failure of one rank restarts all ranks",
        LAUNCHER, other_names=("restart-policy",),
        more="`min-healthy` is refused: it needs a recovery inside the process")
    restarts_reset_on_progress: bool = setting(
        False, grammar.boolean, "", "--max-restarts counts anew after progress", LAUNCHER,
        more="A new checkpoint, or more steps than in the cycle before; "
        "only `checkpoint_iteration_file` where it is set")
    term_timeout: float | None = setting(
        1800.0, grammar.limit, "SECONDS", "time for ranks to save and leave after a preemption signal", LAUNCHER,
        first="term-timeout",
        more="None: no limit")
    workers_stop_timeout: float = setting(
        5.0, grammar.seconds, "SECONDS", "SIGTERM to SIGKILL when ranks are stopped for a restart", LAUNCHER,
        first="workers-stop-timeout")
    exit_timeout: float | None = setting(
        10.0, grammar.limit_or_zero, "SECONDS", "time for a rank to end after an uncaught exception; None: no limit",
        LAUNCHER,
        more="0: at once. [Ranks that do not end](launcher.md#ranks-that-do-not-end)")
    finished_timeout: float | None = setting(
        None, grammar.limit, "SECONDS", "time for a rank to end after its script has finished", LAUNCHER,
        more="Without it a process that stays is reported after 60 s and never ended")
    preempted_exit_code: int = setting(
        0, whole(0, 255), "CODE", "exit code of a preempted job in which no rank failed", LAUNCHER)
    same_failure_limit: int = setting(
        3, whole(0), "CYCLES", "cycles with one exception at one step, after which the job ends", LAUNCHER,
        more="0: never. [A failure that repeats itself](launcher.md#a-failure-that-repeats-itself)")
    exclude_suspects: bool = setting(
        False, grammar.boolean, "", "without a spare, continue without a node that failures make suspect",
        LAUNCHER,
        more="As long as `--nnodes MIN:MAX` allows it. "
        "[Nodes that fail again and again](launcher.md#nodes-that-fail-again-and-again)")
    node_domain: str | None = setting(
        None, grammar.text, "NAME", "nodes that fail together, such as its rack; else its host name", LAUNCHER,
        more="The NVLink domain of its GPUs comes before the host name")
    no_restart_exit_code: int = setting(
        DO_NOT_REQUEUE, whole(1, 255), "CODE", "exit code of a job that this limit, or the one of progress, ends",
        LAUNCHER)
    run_dir: str | None = setting(
        None, _path, "DIR", "for journal and incidents; else one in the user's state folder", LAUNCHER,
        more="[The run directory](incidents-and-journal.md#the-run-directory)")
    per_cycle_applog_prefix: str | None = setting(
        None, _prefix, "PATH", "all output of all ranks, in PATH_cycle0.log and so on", LAUNCHER,
        more="[Log files](log-files.md)")
    launcher_log: str | None = setting(
        None, _path, "FILE", "for the launcher's own lines, with the time", LAUNCHER,
        other_names=("ft-nvrx-logfile", "ft-param-nvrx-logfile"),
        more="Appended to. [Log files](log-files.md)")
    metrics_file: str | None = setting(
        None, _text_file, "FILE", "for node_exporter: metrics of this launcher as a text file", LAUNCHER,
        more="Its folder has to exist. [Metrics](metrics.md)")
    metrics_port: int | None = setting(
        None, optional(whole(1, 65535)), "PORT", "serve the metrics there; needs prometheus-client", LAUNCHER)
    metrics_address: str = setting(
        "127.0.0.1", grammar.matching(r"\S+", "an address"), "ADDRESS", "where that port is opened", LAUNCHER,
        more="`0.0.0.0`: all of this node")
    warm_start: str = setting(
        "auto", grammar.one_of("auto", "on", "off"), "auto|on|off", "start ranks from a process that has imported",
        LAUNCHER,
        more="[Warm start](warm-start.md)")
    preload: tuple[str, ...] = setting((), _modules, "MODULES", "like torch,numpy: import these ahead, too", LAUNCHER)
    ignore_optimizer_steps: bool = setting(
        False, grammar.boolean, "", "do not count the steps of ranks that do not use the client", LAUNCHER,
        more="[Optimizer steps](optimizer-steps.md)")
    early_detection: bool = setting(
        False, grammar.boolean, "", "accuse a rank that is plainly stopped before a limit is passed", LIMITS,
        more="[Before the timeout](diagnose.md#before-the-timeout)")
    node_timeout: float = setting(
        10.0, grammar.seconds, "SECONDS", "silence after which a node counts as gone", HEALTH)
    health_command: str | None = setting(
        None, grammar.matching(r"(?s).*\S.*", "a command"), "COMMAND",
        "one more check: exit code 0 is healthy, its last line the reason", HEALTH,
        more="[Health of nodes](health.md)")
    health_action: str = setting(
        "warn", grammar.one_of("warn", EXCLUDE), "warn|exclude",
        "a sick node: a spare takes its place, or it leaves", HEALTH,
        more="[What follows](health.md#what-follows)")
    health_write_path: str | None = setting(
        None, _path, "DIR", "a folder in which the checks write a file", HEALTH)
    health_timeout: float = setting(
        2.0, grammar.seconds, "SECONDS", "for all checks of a node together", HEALTH)
    # fmt: on


RENDEZVOUS = Reason(Effect.NONE, "Holdfast has one rendezvous, over a c10d store")
ENDPOINT = Reason(Effect.NONE, "--ft-health-command can ask any health service")
LOG_SERVER = Reason(Effect.NONE, "Holdfast has no log server; --log-dir can be on a shared filesystem")
SOCKET = optional(grammar.matching(r"unix://.*|(?!.*://).*", "the path of a socket, or unix:// and the path"))
ANY_COUNT = optional(whole(0))
ANY_AMOUNT = optional(grammar.amount)
_past = partial(make_option, group=PAST, since="0.6")
# fmt: off
_PAST_FLAGS = [
    _past("rdzv_impl", "barrier", grammar.one_of("barrier", "legacy"), "barrier|legacy", "which rendezvous", RENDEZVOUS,
          since="0.5"),
    _past("node_health_check_endpoint", None, SOCKET, "SOCKET", "socket of a health service on the node",
          ENDPOINT, since="0.5"),
    Option("gpus_per_numa", whole(1), None, "GPUS", "GPUs per NUMA node, for binding ranks", PAST, names=(),
           variables=("NVRX_GPUS_PER_NUMA",), since="0.6", no_effect=NUMA),
    _past("cycle_info_job_id", None, grammar.text, "ID", "id of the job in those files", JOURNAL),
    _past("enable_log_server", False, grammar.boolean, "BOOL", "collect the logs of all nodes", LOG_SERVER),
    _past("log_server_port", None, optional(whole(0, 65535)), "PORT", "port of the log server", LOG_SERVER),
    _past("log_server_log_prefix", None, grammar.text, "PATH", "where the log server writes", LOG_SERVER),
    _past("log_server_graceful_shutdown_timeout", None, ANY_AMOUNT, "SECONDS", "time for the log server to end",
          LOG_SERVER),
    _past("log_aggregator_count", None, ANY_COUNT, "N", "number of aggregators", LOG_SERVER),
    _past("log_leaf_max_queue_chunks", None, ANY_COUNT, "N", "longest queue of a node", LOG_SERVER),
    _past("attribution_startup_timeout", None, ANY_AMOUNT, "SECONDS", "time for the service to start", ATTRIBUTION),
    _past("attribution_llm_api_key_file", None, grammar.text, "FILE", "key for the language model", ATTRIBUTION),
    _past("attribution_llm_base_url", None, grammar.text, "URL", "address of the language model", ATTRIBUTION),
    _past("attribution_llm_model", None, grammar.text, "NAME", "name of the language model", ATTRIBUTION),
    _past("attribution_analysis_backend", None, grammar.text, "NAME", "how logs are analysed", ATTRIBUTION),
    _past("attribution_compute_timeout", None, ANY_AMOUNT, "SECONDS", "longest time of one analysis", ATTRIBUTION),
    _past("attribution_log_level", None, optional(grammar.log_level), "LEVEL", "log level of the service", ATTRIBUTION),
]
# fmt: on

OPTIONS: tuple[Option, ...] = (*SETTINGS.values(), *options_of(LauncherOptions), *_PAST_FLAGS)
"""Every option that torchrun does not have."""


def shown(option: Option) -> str:
    """The name of an option in reports and docs: of a setting its key."""
    return option.key if option.is_setting else option.name


def reports(values: Mapping[str, object]) -> list[str]:
    """The line to log at the start for these values; none where each is a default."""
    by_reason: dict[Reason, list[str]] = {}
    for each in OPTIONS:
        if each.no_effect and values.get(each.key, each.default) != each.default:
            by_reason.setdefault(each.no_effect, []).append(shown(each))
    others = [
        f"{', '.join(names)} ({why.text})" for why, names in by_reason.items() if why.effect is Effect.NONE
    ]
    return [f"accepted, no effect here: {'; '.join(others)}"] if others else []
