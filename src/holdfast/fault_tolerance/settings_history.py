"""The settings of NVRx's releases that are accepted here and change nothing: one table.

Acceptance, defaults, checks, the lines at the start of a job and the page docs/settings-history.md are all made from
it. A setting that takes effect leaves this table and gets a field of its own in `config`.

Does not cover: the settings that take effect (`config`), and the grammar of values (`config_fields`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from . import config_fields as grammar

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
    reason: Reason
    metavar: str
    meaning: str
    default: object = None
    since: str = "0.6"
    other_names: tuple[str, ...] = ()
    variable: str = ""  # set: there is neither key nor flag, only this environment variable
    is_key: bool = True

    @property
    def shown(self) -> str:
        """The name in reports and on the page."""
        return self.variable or (self.name if self.is_key else f"--ft-{self.name.replace('_', '-')}")


HEALTH = Reason(Effect.NOT_YET, "GPUs, network cards and storage are not checked")
MEMORY = Reason(Effect.NOT_YET, "a restart does not wait for GPU memory")
PLACES = Reason(
    Effect.NOT_YET, "nodes are ordered by --node-rank, SLURM_PROCID or GROUP_RANK where given, then by name"
)

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
ANY_COUNT = grammar.optional(grammar.whole(0))
ANY_AMOUNT = grammar.optional(grammar.amount)
ANY_PORT = grammar.optional(grammar.whole(0, 65535))
ANY_LEVEL = grammar.optional(grammar.log_level)

# fmt: off
_KEYS = (
    PastSetting("node_health_check_interval", grammar.optional(grammar.seconds), HEALTH, "SECONDS",
                "time between two checks of the node's health", default=5.0, since=OLDEST),
    PastSetting("restart_check_interval", grammar.optional(grammar.seconds), EVENTS, "SECONDS",
                "time between two checks for a restart in progress", default=60.0, since=OLDEST),
    PastSetting("enable_nic_monitor", grammar.boolean, HEALTH, "BOOL",
                "watch link-down counters of InfiniBand cards", default=False, since=OLDEST),
    PastSetting("pci_topo_file", grammar.text, HEALTH, "FILE",
                "which network card belongs to which GPU", since=OLDEST),
    PastSetting("link_down_path_template", grammar.template, HEALTH, "PATH",
                "link-down counter, with {dev_name} or {nic}", since=OLDEST),
    PastSetting("skip_section_response", grammar.boolean, MEMORY_WRITE, "BOOL",
                "section calls do not wait for an answer", default=True, since="0.5"),
    PastSetting("enable_nic_healthcheck", grammar.boolean, HEALTH, "BOOL",
                "before a node joins: network ports that were active still are", default=True),
    PastSetting("link_state_path_template", grammar.template, HEALTH, "PATH",
                "state of a network port, with {dev_name} or {nic}", default=LINK_STATE),
    PastSetting("enable_dist_storage_healthcheck", grammar.boolean, HEALTH, "BOOL",
                "check the mounts of Lustre and NFS", default=False, other_names=("dist_storage_health_check",)),
    PastSetting("storage_healthcheck_path", grammar.absolute_paths, HEALTH, "PATH,...",
                "paths that must exist and be readable", other_names=("storage_health_check_path",)),
    PastSetting("segment", grammar.optional(grammar.whole(1)), PLACES, "NODES",
                "nodes per complete group within one NVLink domain"),
    PastSetting("numa_bind_strict", grammar.boolean, NUMA, "BOOL",
                "bind the memory of ranks to their NUMA node too", default=True),
    PastSetting("gpu_memory_reclaim_timeout", grammar.optional(grammar.amount), MEMORY, "SECONDS",
                "longest wait for free GPU memory before ranks start again", default=50.0),
    PastSetting("gpu_memory_tolerance_mb", grammar.optional(grammar.amount), MEMORY, "MEGABYTES",
                "GPU memory in use that counts as free", default=512.0),
    PastSetting("gpu_memory_poll_interval", grammar.optional(grammar.seconds), MEMORY, "SECONDS",
                "time between two reads of the GPU memory in use", default=2.0),
    PastSetting("check_remaining_processes", grammar.boolean, SWEEP, "BOOL",
                "log what is left of stopped ranks", default=False),
    PastSetting("cycle_info_dir", grammar.text, JOURNAL, "DIR", "one JSON file per cycle"),
    PastSetting("attribution_endpoint", grammar.text, ATTRIBUTION, "ADDRESS",
                "address of the service that reads logs"),
    PastSetting("attribution_stop_action", grammar.text, ATTRIBUTION, "ACTION",
                "reaction to the service's advice to stop"),
    PastSetting("attribution_export_url", grammar.text, ATTRIBUTION, "URL",
                "address for the service's results"),
)
_FLAGS = (
    PastSetting("rdzv_impl", grammar.one_of("barrier", "legacy"), RENDEZVOUS, "barrier|legacy",
                "which rendezvous", default="barrier", since="0.5"),
    PastSetting("node_health_check_endpoint", grammar.socket_path, ENDPOINT, "SOCKET",
                "socket of a health service on the node", since="0.5"),
    PastSetting("gpus_per_numa", grammar.whole(1), NUMA, "GPUS",
                "GPUs per NUMA node, for binding ranks", variable="NVRX_GPUS_PER_NUMA"),
    PastSetting("cycle_info_job_id", grammar.text, JOURNAL, "ID", "id of the job in those files"),
    PastSetting("enable_log_server", grammar.boolean, LOG_SERVER, "BOOL",
                "collect the logs of all nodes", default=False),
    PastSetting("log_server_port", ANY_PORT, LOG_SERVER, "PORT", "port of the log server"),
    PastSetting("log_server_log_prefix", grammar.text, LOG_SERVER, "PATH", "where the log server writes"),
    PastSetting("log_server_graceful_shutdown_timeout", ANY_AMOUNT, LOG_SERVER, "SECONDS",
                "time for the log server to end"),
    PastSetting("log_aggregator_count", ANY_COUNT, LOG_SERVER, "N", "number of aggregators"),
    PastSetting("log_leaf_max_queue_chunks", ANY_COUNT, LOG_SERVER, "N", "longest queue of a node"),
    PastSetting("attribution_startup_timeout", ANY_AMOUNT, ATTRIBUTION, "SECONDS",
                "time for the service to start"),
    PastSetting("attribution_llm_api_key_file", grammar.text, ATTRIBUTION, "FILE",
                "key for the language model"),
    PastSetting("attribution_llm_base_url", grammar.text, ATTRIBUTION, "URL",
                "address of the language model"),
    PastSetting("attribution_llm_model", grammar.text, ATTRIBUTION, "NAME", "name of the language model"),
    PastSetting("attribution_analysis_backend", grammar.text, ATTRIBUTION, "NAME", "how logs are analysed"),
    PastSetting("attribution_compute_timeout", ANY_AMOUNT, ATTRIBUTION, "SECONDS",
                "longest time of one analysis"),
    PastSetting("attribution_log_level", ANY_LEVEL, ATTRIBUTION, "LEVEL", "log level of the service"),
)
# fmt: on

_TABLE = (*_KEYS, *(dataclasses.replace(each, is_key=False) for each in _FLAGS))
HISTORY: dict[str, PastSetting] = {each.name: each for each in _TABLE}
"""Every such setting by name, in the order of the documentation."""


def field_of(name: str) -> Any:
    """The dataclass field of a setting that is a key."""
    past = HISTORY[name]
    meaning = f"{past.meaning} ({past.reason.effect.value})"
    about = {"parse": past.parse, "metavar": past.metavar, "help": meaning, "since": past.since}
    return dataclasses.field(default=past.default, metadata=about)


def names_of(name: str) -> tuple[str, ...]:
    """`name` and the other names that flags and environment variables have for it."""
    return (name, *HISTORY[name].other_names) if name in HISTORY else (name,)


def reports(values: Mapping[str, object]) -> list[str]:
    """The lines to log at the start for these settings: at most one for each class, none for a default."""
    changed = [each for each in _TABLE if values.get(each.name, each.default) != each.default]
    waiting = [each.shown for each in changed if each.reason.effect is Effect.NOT_YET]
    lines = []
    if waiting:
        lines.append(f"accepted, not yet effective in this version: {', '.join(waiting)}")
    by_reason: dict[str, list[str]] = {}
    for each in changed:
        if each.reason.effect is Effect.NONE:
            by_reason.setdefault(each.reason.text, []).append(each.shown)
    if by_reason:
        without = "; ".join(f"{', '.join(shown)} ({reason})" for reason, shown in by_reason.items())
        lines.append(f"accepted, no effect here: {without}")
    return lines
