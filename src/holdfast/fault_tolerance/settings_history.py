"""The settings of NVRx's releases that are accepted here and change nothing: one table.

Acceptance, defaults, checks, the lines at the start of a job and the page docs/settings-history.md are all made from
it. A setting that takes effect leaves this table and gets a field of its own in `config`.

Does not cover: the settings that take effect (`config`), and the grammar of values (`config_fields`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from . import config_fields as grammar

__all__ = ["HISTORY", "Effect", "PastSetting", "Reason", "field_of", "names_of", "only_if_set", "reports"]

OLDEST = "0.4"
"""Stands for release 0.4 and those before it."""


class Effect(Enum):
    """The class of a setting; the value is the word for it in reports and on the page."""

    NOT_YET = "not yet effective"
    NOT_NEEDED = "no effect needed"
    NONE = "no effect here"


@dataclass(frozen=True)
class Reason:
    """Why a setting changes nothing, in half a sentence."""

    effect: Effect
    text: str


@dataclass(frozen=True)
class PastSetting:
    """One setting. A key is a field of the config, a YAML key and a flag; other settings are flags only."""

    name: str
    parse: Callable[[object], object]
    default: object
    since: str
    reason: Reason
    metavar: str
    meaning: str
    is_key: bool = True
    other_names: tuple[str, ...] = ()
    variable: str = ""  # set: there is neither key nor flag, only this environment variable

    @property
    def shown(self) -> str:
        """The name in reports and on the page."""
        return self.variable or (self.name if self.is_key else f"--ft-{self.name.replace('_', '-')}")


HEALTH = Reason(Effect.NOT_YET, "GPUs, network cards and storage are not checked")
MEMORY = Reason(Effect.NOT_YET, "a restart does not wait for GPU memory")
PROGRESS = Reason(Effect.NOT_YET, "--max-restarts limits restarts")
PLACES = Reason(Effect.NOT_YET, "nodes are ordered by --node-rank where it is given, else by address")
EXITS = Reason(Effect.NOT_YET, "an uncaught exception ends a rank as Python ends it")
WARM_UP = Reason(Effect.NOT_YET, "timeouts hold from the first step")
FILES = Reason(Effect.NOT_YET, "output goes to the terminal and to --log-dir")

MEMORY_WRITE = Reason(Effect.NOT_NEEDED, "a section call writes to shared memory; nothing answers it")
EVENTS = Reason(Effect.NOT_NEEDED, "the launcher is notified of a failure at once and does not poll")
SWEEP = Reason(Effect.NOT_NEEDED, "what stopped ranks leave is always ended, and logged where that fails")

RENDEZVOUS = Reason(Effect.NONE, "Holdfast has one rendezvous, over a c10d store")
ENDPOINT = Reason(Effect.NONE, "Holdfast does not call a health service of the node")
NUMA = Reason(Effect.NONE, "torchrun's --numa-binding binds ranks")
JOURNAL = Reason(Effect.NONE, "the journal in the run directory has every cycle")
LOG_SERVER = Reason(Effect.NONE, "Holdfast has no log server; --log-dir can be on a shared filesystem")
ATTRIBUTION = Reason(Effect.NONE, "Holdfast has no attribution service; incident reports name the culprit")

LINK_STATE = "/sys/class/infiniband/{nic}/ports/1/state"
COUNT = grammar.whole(0)
ANY_COUNT = grammar.optional(COUNT)
ANY_AMOUNT = grammar.optional(grammar.amount)
ANY_PORT = grammar.optional(grammar.whole(0, 65535))
ANY_LEVEL = grammar.optional(grammar.log_level)

# fmt: off
_TABLE = (
    PastSetting("node_health_check_interval", grammar.optional(grammar.seconds), 5.0, OLDEST, HEALTH, "SECONDS",
                "time between two checks of the node's health"),
    PastSetting("restart_check_interval", grammar.optional(grammar.seconds), 60.0, OLDEST, EVENTS, "SECONDS",
                "time between two checks for a restart in progress"),
    PastSetting("enable_nic_monitor", grammar.boolean, False, OLDEST, HEALTH, "BOOL",
                "watch link-down counters of InfiniBand cards"),
    PastSetting("pci_topo_file", grammar.text, None, OLDEST, HEALTH, "FILE",
                "which network card belongs to which GPU"),
    PastSetting("link_down_path_template", grammar.template, None, OLDEST, HEALTH, "PATH",
                "link-down counter, with {dev_name} or {nic}"),
    PastSetting("skip_section_response", grammar.boolean, True, "0.5", MEMORY_WRITE, "BOOL",
                "section calls do not wait for an answer"),
    PastSetting("use_infra_group_rank", grammar.boolean, True, "0.5", PLACES, "BOOL",
                "order of nodes from SLURM_PROCID or GROUP_RANK"),
    PastSetting("enable_nic_healthcheck", grammar.boolean, True, "0.6", HEALTH, "BOOL",
                "before a node joins: network ports that were active still are"),
    PastSetting("link_state_path_template", grammar.template, LINK_STATE, "0.6", HEALTH, "PATH",
                "state of a network port, with {dev_name} or {nic}"),
    PastSetting("enable_dist_storage_healthcheck", grammar.boolean, False, "0.6", HEALTH, "BOOL",
                "check the mounts of Lustre and NFS", other_names=("dist_storage_health_check",)),
    PastSetting("storage_healthcheck_path", grammar.absolute_paths, None, "0.6", HEALTH, "PATH,...",
                "paths that must exist and be readable", other_names=("storage_health_check_path",)),
    PastSetting("segment", grammar.optional(grammar.whole(1)), None, "0.6", PLACES, "NODES",
                "nodes per complete group within one NVLink domain"),
    PastSetting("numa_bind_strict", grammar.boolean, True, "0.6", NUMA, "BOOL",
                "bind the memory of ranks to their NUMA node too"),
    PastSetting("gpu_memory_reclaim_timeout", grammar.optional(grammar.amount), 50.0, "0.6", MEMORY, "SECONDS",
                "longest wait for free GPU memory before ranks start again"),
    PastSetting("gpu_memory_tolerance_mb", grammar.optional(grammar.amount), 512.0, "0.6", MEMORY, "MEGABYTES",
                "GPU memory in use that counts as free"),
    PastSetting("gpu_memory_poll_interval", grammar.optional(grammar.seconds), 2.0, "0.6", MEMORY, "SECONDS",
                "time between two reads of the GPU memory in use"),
    PastSetting("check_remaining_processes", grammar.boolean, False, "0.6", SWEEP, "BOOL",
                "log what is left of stopped ranks"),
    PastSetting("max_no_progress_cycles", grammar.whole(-1), 2, "0.6", PROGRESS, "CYCLES",
                "successive cycles without progress that end the job (3 in later releases; 0 or -1: never)"),
    PastSetting("min_progress_iterations", COUNT, 1, "0.6", PROGRESS, "ITERATIONS",
                "iterations that count as progress"),
    PastSetting("checkpoint_iteration_file", grammar.text, None, "0.6", PROGRESS, "FILE",
                "has the iteration of the last checkpoint"),
    PastSetting("install_exception_hook", grammar.boolean, False, "0.6", EXITS, "BOOL",
                "an uncaught exception ends the process after its traceback"),
    PastSetting("num_warmup_iterations", COUNT, 5, "0.6", WARM_UP, "ITERATIONS",
                "first steps of a cycle, exempt from the step and out-of-section timeouts"),
    PastSetting("cycle_info_dir", grammar.text, None, "0.6", JOURNAL, "DIR",
                "one JSON file per cycle"),
    PastSetting("attribution_endpoint", grammar.text, None, "0.6", ATTRIBUTION, "ADDRESS",
                "address of the service that reads logs"),
    PastSetting("attribution_stop_action", grammar.text, None, "0.6", ATTRIBUTION, "ACTION",
                "reaction to the service's advice to stop"),
    PastSetting("attribution_export_url", grammar.text, None, "0.6", ATTRIBUTION, "URL",
                "address for the service's results"),

    PastSetting("rdzv_impl", grammar.one_of("barrier", "legacy"), "barrier", "0.5", RENDEZVOUS, "barrier|legacy",
                "which rendezvous", is_key=False),
    PastSetting("node_health_check_endpoint", grammar.socket_path, None, "0.5", ENDPOINT, "SOCKET",
                "socket of a health service on the node", is_key=False),
    PastSetting("gpus_per_numa", grammar.whole(1), None, "0.6", NUMA, "GPUS",
                "GPUs per NUMA node, for binding ranks", is_key=False, variable="NVRX_GPUS_PER_NUMA"),
    PastSetting("no_restart_exit_code", grammar.exit_code, 93, "main", PROGRESS, "CODE",
                "exit code of a job that makes no progress", is_key=False),
    PastSetting("cycle_info_job_id", grammar.text, None, "0.6", JOURNAL, "ID",
                "id of the job in those files", is_key=False),
    PastSetting("per_cycle_applog_prefix", grammar.text, None, "0.6", FILES, "PATH",
                "output of all ranks, one file per cycle", is_key=False),
    PastSetting("nvrx_logfile", grammar.text, None, "0.6", FILES, "FILE",
                "the launcher's own log", is_key=False),
    PastSetting("enable_log_server", grammar.boolean, False, "0.6", LOG_SERVER, "BOOL",
                "collect the logs of all nodes", is_key=False),
    PastSetting("log_server_port", ANY_PORT, None, "0.6", LOG_SERVER, "PORT",
                "port of the log server", is_key=False),
    PastSetting("log_server_log_prefix", grammar.text, None, "0.6", LOG_SERVER, "PATH",
                "where the log server writes", is_key=False),
    PastSetting("log_server_graceful_shutdown_timeout", ANY_AMOUNT, None, "0.6", LOG_SERVER, "SECONDS",
                "time for the log server to end", is_key=False),
    PastSetting("log_aggregator_count", ANY_COUNT, None, "0.6", LOG_SERVER, "N",
                "number of aggregators", is_key=False),
    PastSetting("log_leaf_max_queue_chunks", ANY_COUNT, None, "0.6", LOG_SERVER, "N",
                "longest queue of a node", is_key=False),
    PastSetting("attribution_startup_timeout", ANY_AMOUNT, None, "0.6", ATTRIBUTION, "SECONDS",
                "time for the service to start", is_key=False),
    PastSetting("attribution_llm_api_key_file", grammar.text, None, "0.6", ATTRIBUTION, "FILE",
                "key for the language model", is_key=False),
    PastSetting("attribution_llm_base_url", grammar.text, None, "0.6", ATTRIBUTION, "URL",
                "address of the language model", is_key=False),
    PastSetting("attribution_llm_model", grammar.text, None, "0.6", ATTRIBUTION, "NAME",
                "name of the language model", is_key=False),
    PastSetting("attribution_analysis_backend", grammar.text, None, "0.6", ATTRIBUTION, "NAME",
                "how logs are analysed", is_key=False),
    PastSetting("attribution_compute_timeout", ANY_AMOUNT, None, "0.6", ATTRIBUTION, "SECONDS",
                "longest time of one analysis", is_key=False),
    PastSetting("attribution_log_level", ANY_LEVEL, None, "0.6", ATTRIBUTION, "LEVEL",
                "log level of the service", is_key=False),
)
# fmt: on

HISTORY: dict[str, PastSetting] = {each.name: each for each in _TABLE}
"""Every such setting by name, in the order of the documentation."""


def field_of(name: str) -> Any:
    """The dataclass field of a setting that is a key."""
    past = HISTORY[name]
    meaning = f"{past.meaning} ({past.reason.effect.value})"
    about = {"parse": past.parse, "metavar": past.metavar, "help": meaning}
    return dataclasses.field(default=past.default, metadata=about)


def names_of(name: str) -> tuple[str, ...]:
    """`name` and the other names that flags and environment variables have for it."""
    return (name, *HISTORY[name].other_names) if name in HISTORY else (name,)


def only_if_set(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without the settings of 0.5 and later at their default: NVRx 0.4 refuses a file with unknown keys."""
    return {name: value for name, value in values.items() if not _is_later_default(name, value)}


def reports(values: Mapping[str, object]) -> list[str]:
    """The lines to log at the start for these settings: at most one for each class, none for a default."""
    changed = [each for each in _TABLE if values.get(each.name, each.default) != each.default]
    waiting = [each.shown for each in changed if each.reason.effect is Effect.NOT_YET]
    without = [each for each in changed if each.reason.effect is Effect.NONE]
    lines = []
    if waiting:
        lines.append(f"accepted, not yet effective in this version: {', '.join(waiting)}")
    if without:
        lines.append(f"accepted, no effect here: {_by_reason(without)}")
    return lines


def _by_reason(settings: Iterable[PastSetting]) -> str:
    names: dict[str, list[str]] = {}
    for each in settings:
        names.setdefault(each.reason.text, []).append(each.shown)
    return "; ".join(f"{', '.join(shown)} ({reason})" for reason, shown in names.items())


def _is_later_default(name: str, value: object) -> bool:
    past = HISTORY.get(name)
    return past is not None and past.since != OLDEST and value == past.default
