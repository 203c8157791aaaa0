"""`FaultToleranceConfig`: the settings of supervision, their defaults and their meaning.

YAML keys, environment variables, ``--ft-…`` flags, ``--help`` and the docs are all made from the fields of this
dataclass. A config that exists is valid: every value went through its grammar (`config_fields`), so readers never
check again. Assigning to a field later is possible and not checked. A setting of another release of NVRx that changes
nothing here has the reason in its field; docs/reference/settings.md is made from them.

Does not cover: merging the sources of a job (`config_sources`), and options that concern only the launcher
(`launcher.command_line.ft_options`).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import signal
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import config_fields as grammar
from .config_fields import OLDEST, Effect, Option, Reason, optional, parse_with, whole
from .errors import ConfigError

if TYPE_CHECKING:
    import argparse
    import os

__all__ = ["ConfigError", "FaultToleranceConfig"]

SECTION = "fault_tolerance"
"""The YAML key of the settings."""

WIDTH = 92
"""Columns of a line of a docstring; `help` indents that of a class by up to 8 more."""

LIMITS = "limits (when is a rank hung?)"
LAUNCHER = "restarts, signals and files of the launcher"
HEALTH = "health of nodes"
PAST = "accepted from other releases, without effect in this version"
"""Groups of options in ``--help``."""

CARDS = Reason(Effect.NOT_NEEDED, "all network cards of the node are watched, whichever GPU they are near")
POLLS = Reason(Effect.NOT_NEEDED, "the GPU memory in use is read every 50 ms")
MEMORY_WRITE = Reason(Effect.NOT_NEEDED, "a section call writes to shared memory; nothing answers it")
EVENTS = Reason(Effect.NOT_NEEDED, "the launcher is notified of a failure at once and does not poll")
SWEEP = Reason(Effect.NOT_NEEDED, "what stopped ranks leave is always ended, and logged where that fails")
NUMA = Reason(Effect.NONE, "torchrun's --numa-binding binds ranks")
JOURNAL = Reason(Effect.NONE, "the journal in the run directory has every cycle")
ATTRIBUTION = Reason(Effect.NONE, "Holdfast has no attribution service; incident reports name the culprit")

UNITS = {
    "SECONDS": "In seconds",
    "NAME:SECONDS,...": "In seconds for each section",
    "FACTOR": "A number without unit",
    "SIGNAL": "A signal's name or number",
    "LEVEL": "A level of `logging`",
    "BOOL": "True or False",
    "FILE": "A path",
    "PATH": "A path",
    "PATH,...": "Paths, separated by commas",
    "DIR": "A path",
    "NODES": "A number of nodes",
    "CYCLES": "A number of cycles",
    "ITERATIONS": "A number of iterations",
    "MEGABYTES": "In megabytes",
}
"""What a value of a field is, by the field's metavar."""

TEMPLATE = optional(
    grammar.matching(
        r"[^{}]*(\{(dev_name|nic)\}[^{}]*)+",
        "a path that contains {dev_name} or {nic}, and no other placeholder",
    )
)
ABSOLUTE_PATHS = optional(grammar.matching(r"\s*/[^,]*(,\s*/[^,]*)*", "absolute paths, separated by commas"))
_log = logging.getLogger(__name__)


def setting(
    default: Any, parse: Callable[[Any], Any], metavar: str, meaning: str, group: str = LIMITS, **about: Any
) -> Any:
    """A dataclass field that is an option, too.

    Args:
        default: As it may be given; the config holds what `parse` makes of it.
        about: `since`, `no_effect` and `more` of the `Option`; `first`, the name to show first if it is not
            ``ft-<field>``; `other_names` in addition to those of the field; `more_variables`.
    """
    about |= {"parse": parse, "metavar": metavar, "meaning": meaning}
    about["group"] = PAST if "no_effect" in about else group
    return field(default=default, metadata=about)


def options_of(cls: type) -> list[Option]:
    """The options that the fields of a dataclass are, in their order."""
    is_setting = cls is FaultToleranceConfig
    found = [each for each in dataclasses.fields(cls) if each.metadata]
    return [make_option(each.name, each.default, is_setting=is_setting, **each.metadata) for each in found]


def make_option(
    key: str,
    default: Any,
    parse: Callable[[Any], Any],
    metavar: str,
    meaning: str,
    no_effect: Reason | None = None,
    *,
    group: str,
    first: str = "",
    other_names: tuple[str, ...] = (),
    more_variables: tuple[str, ...] = (),
    **about: Any,
) -> Option:
    """An option with all the names of its history: ``ft-<key>``, ``ft-param-<key>`` and the others; see `setting`."""
    flag = key.replace("_", "-")
    names = tuple(dict.fromkeys([first or f"ft-{flag}", f"ft-{flag}", f"ft-param-{flag}", *other_names]))
    variables = (*(f"PET_{name.upper().replace('-', '_')}" for name in names), *more_variables)
    return Option(
        key, parse, default, metavar, meaning, group, names, variables, no_effect=no_effect, **about
    )


@dataclass
class FaultToleranceConfig:
    """Settings of the supervision of ranks. Times are seconds; a timeout of None is no limit.

    Values may be given as text, as on the command line (``"60"``, ``"SIGTERM"``, ``"step:180"``); a field always
    holds its proper type afterwards. Raises `ConfigError` (a `ValueError`) for a value that is not allowed.

    Does not cover: whether timeouts fit the job. A timeout shorter than a healthy step kills a healthy rank.
    """

    # fmt: off
    workload_check_interval: float = setting(
        5.0, grammar.seconds, "SECONDS", "longest sleep of the monitor; deadlines are met exactly anyway")
    initial_rank_heartbeat_timeout: float | None = setting(
        3600.0, grammar.limit, "SECONDS", "from a rank's start to its first heartbeat or section",
        more="For a script that never connects only if set; an [optimizer step](optimizer-steps.md) ends it too")
    rank_heartbeat_timeout: float | None = setting(
        2700.0, grammar.limit, "SECONDS", "longest time between two heartbeats",
        more="For a script that never connects: between two optimizer steps, only if set")
    rank_section_timeouts: dict[str, float | None] = setting(  # noqa: RUF009
        None, grammar.sections, "NAME:SECONDS,...", "longest time in each section, like setup:600,step:180",
        more="A mapping in YAML. `checkpointing:None` is no timeout")
    rank_out_of_section_timeout: float | None = setting(
        None, grammar.limit, "SECONDS", "longest time with no section open")
    node_health_check_interval: float | None = setting(
        5.0, optional(grammar.seconds), "SECONDS", "time between two checks of the node while ranks train; None: none",
        HEALTH,
        more="[Health of nodes](health.md)")
    safety_factor: float = setting(
        5.0, grammar.factor, "FACTOR", "learned timeout = FACTOR x longest duration observed",
        more="[Learned timeouts](sections-and-heartbeats.md#learned-timeouts)")
    rank_termination_signal: signal.Signals = setting(  # noqa: RUF009
        "SIGKILL", grammar.signal_of, "SIGNAL", "first signal to a hung rank; SIGKILL follows")
    log_level: int = setting(
        "INFO", grammar.log_level, "LEVEL", "DEBUG, INFO, WARNING, ERROR, CRITICAL or a number")
    restart_check_interval: float | None = setting(
        60.0, optional(grammar.seconds), "SECONDS", "time between two checks for a restart in progress",
        no_effect=EVENTS)
    enable_nic_monitor: bool = setting(
        False, grammar.boolean, "BOOL", "watch link-down counters of InfiniBand cards", HEALTH)
    pci_topo_file: str | None = setting(
        None, grammar.text, "FILE", "which network card belongs to which GPU", no_effect=CARDS)
    link_down_path_template: str | None = setting(
        None, TEMPLATE, "PATH", "link-down counter, with {dev_name} or {nic}", HEALTH,
        more="Without it `/sys/class/infiniband/{nic}/ports/1/counters/link_downed`")
    # Of 0.5 and later.
    skip_section_response: bool = setting(
        True, grammar.boolean, "BOOL", "section calls do not wait for an answer", since="0.5", no_effect=MEMORY_WRITE)
    use_infra_group_rank: bool = setting(
        True, grammar.boolean, "BOOL", "order nodes by SLURM_PROCID or GROUP_RANK, if set, then name", LAUNCHER,
        since="0.5")
    enable_nic_healthcheck: bool = setting(
        True, grammar.boolean, "BOOL", "network ports that were active still are", HEALTH, since="0.6")
    link_state_path_template: str | None = setting(
        "/sys/class/infiniband/{nic}/ports/1/state", TEMPLATE, "PATH",
        "state of a card's port", HEALTH, since="0.6",
        more="`{nic}` and `{dev_name}` are the card's name")
    enable_dist_storage_healthcheck: bool = setting(
        False, grammar.boolean, "BOOL", "check the mounts of Lustre and NFS", HEALTH, since="0.6",
        other_names=("ft-dist-storage-health-check", "ft-param-dist-storage-health-check"))
    storage_healthcheck_path: str | None = setting(
        None, ABSOLUTE_PATHS, "PATH,...", "paths that must exist and be readable", HEALTH, since="0.6",
        other_names=("ft-storage-health-check-path", "ft-param-storage-health-check-path"))
    segment: int | None = setting(
        None, optional(whole(1)), "NODES", "nodes per complete group within one NVLink domain", LAUNCHER,
        since="0.6",
        more="[Segments](health.md#segments)")
    numa_bind_strict: bool = setting(
        True, grammar.boolean, "BOOL", "bind the memory of ranks to their NUMA node too", since="0.6", no_effect=NUMA)
    gpu_memory_reclaim_timeout: float | None = setting(
        50.0, optional(grammar.amount), "SECONDS", "longest wait for GPU memory of ranks that ended", HEALTH,
        since="0.6",
        more="0: none. [GPU memory](health.md#gpu-memory-of-ranks-that-ended)")
    gpu_memory_tolerance_mb: float | None = setting(
        512.0, optional(grammar.amount), "MEGABYTES", "GPU memory in use that counts as free", HEALTH, since="0.6")
    gpu_memory_poll_interval: float | None = setting(
        2.0, optional(grammar.seconds), "SECONDS", "time between two reads of the GPU memory in use", since="0.6",
        no_effect=POLLS)
    check_remaining_processes: bool = setting(
        False, grammar.boolean, "BOOL", "log what is left of stopped ranks", since="0.6", no_effect=SWEEP)
    max_no_progress_cycles: int = setting(
        2, whole(-1), "CYCLES", "failed cycles in a row that saved nothing new: the job ends", LAUNCHER, since="0.6",
        more="0 or -1: never. Without `checkpoint_iteration_file` it has no effect")
    min_progress_iterations: int = setting(
        1, whole(0), "ITERATIONS", "growth of that number that counts as progress", LAUNCHER, since="0.6")
    checkpoint_iteration_file: str | None = setting(
        None, grammar.text, "FILE", "has the last checkpoint's iteration: measures progress", LAUNCHER, since="0.6",
        more="[A job that makes no progress](launcher.md#a-job-that-makes-no-progress)")
    install_exception_hook: bool = setting(
        False, grammar.boolean, "BOOL", "end a rank at once after an uncaught exception", LAUNCHER, since="0.6",
        more="As `--ft-exit-timeout 0`: [ranks that do not end](launcher.md#ranks-that-do-not-end)")
    num_warmup_iterations: int = setting(
        0, whole(0), "ITERATIONS", "first steps of a cycle that may take as long as the initial timeout", since="0.6",
        more="[The first steps](sections-and-heartbeats.md#the-first-steps)")
    cycle_info_dir: str | None = setting(
        None, grammar.text, "DIR", "one JSON file per cycle", since="0.6", no_effect=JOURNAL)
    attribution_endpoint: str | None = setting(
        None, grammar.text, "ADDRESS", "address of the service that reads logs", since="0.6", no_effect=ATTRIBUTION)
    attribution_stop_action: str | None = setting(
        None, grammar.text, "ACTION", "reaction to the service's advice to stop", since="0.6", no_effect=ATTRIBUTION)
    attribution_export_url: str | None = setting(
        None, grammar.text, "URL", "address for the service's results", since="0.6", no_effect=ATTRIBUTION)
    # fmt: on

    def __post_init__(self) -> None:
        for name, option in SETTINGS.items():
            setattr(self, name, parse_with(option.parse, getattr(self, name), name))

    @classmethod
    def from_kwargs(cls, ignore_not_recognized: bool = True, **kwargs: object) -> FaultToleranceConfig:
        """A config of these settings, defaults for the rest.

        An unknown name is left out with a warning in the log, or refused (`ConfigError`) when
        `ignore_not_recognized` is False.
        """
        return cls(**typed(kwargs, "FaultToleranceConfig, {}".format, ignore_not_recognized))

    @classmethod
    def from_yaml_file(
        cls, cfg_path: str | os.PathLike[str], ignore_not_recognized: bool = True
    ) -> FaultToleranceConfig:
        """The config in the ``fault_tolerance`` section of a YAML file, at the top level or nested anywhere.

        Raises `ConfigError` when the file cannot be read, is not YAML, has no such section (or several), or holds
        a value that is not allowed. Unknown keys: as in `from_kwargs`.
        """
        from .config_sources import read_section

        section = read_section(cfg_path)
        return cls(**typed(section.values, section.where, ignore_not_recognized))

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> FaultToleranceConfig:
        """The config of a parsed command line: built-in default < YAML < arguments.

        Reads ``ft_cfg_path`` (older: ``fault_tol_cfg_path``), ``ft_<setting>`` (older: ``ft_param_<setting>``) and
        ``ignore_missing_fault_tol_cfg`` (``ft_ignore_missing_cfg``); an absent attribute, or None, was not given.
        As strict as the command line of ``ft_launcher``. Raises `ConfigError`.
        """
        from .config_sources import load_arguments

        return load_arguments(args).config

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values, JSON-serialisable; the signal and a standard log level by name.

        Settings that NVRx 0.4 does not have are left out at their default: it refuses a file with unknown keys.
        """
        values = dataclasses.asdict(self)
        values["rank_termination_signal"] = grammar.signal_of(self.rank_termination_signal).name
        values["log_level"] = grammar.log_level_name(grammar.log_level(self.log_level))
        later = {name: each.default for name, each in SETTINGS.items() if each.since != OLDEST}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    def to_yaml_file(self, cfg_path: str | os.PathLike[str]) -> None:
        """Write all settings as a YAML file that `from_yaml_file` and ``--ft-cfg-path`` read. Raises `OSError`."""
        import yaml

        with open(cfg_path, "w", encoding="utf-8") as file:
            yaml.safe_dump({SECTION: self.to_dict()}, file, sort_keys=False)


SETTINGS: dict[str, Option] = {option.key: option for option in options_of(FaultToleranceConfig)}
"""Every setting by name, in the order of the documentation."""


def docstring_section(heading: str, items: Iterable[tuple[str, str]]) -> str:
    """A section of a docstring in Google style, without an empty line at its end.

    Args:
        heading: like ``Args``.
        items: name (with its type, if that is to be shown) and description of each item.
    """
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join([f"{heading}:", *(wrapper.fill(f"{name}: {text}") for name, text in items)])


def attributes(options: Mapping[str, Option], types: Mapping[str, str]) -> str:
    """The section ``Attributes:`` of a docstring; every field with its type, meaning, unit and default."""
    items = []
    for name, option in options.items():
        unit = UNITS.get(option.metavar, f"Unit: {option.metavar}")
        if "None" in types[name]:
            unit += "; None is no limit" if "SECONDS" in option.metavar else ", or None"
        default = f"{option.default:g}" if isinstance(option.default, float) else option.default
        effect = f" ({option.no_effect.effect.value})" if option.no_effect else ""
        items.append((f"{name} ({types[name]})", f"{option.meaning}{effect}. {unit}. Default: {default}."))
    return docstring_section("Attributes", items)


if FaultToleranceConfig.__doc__ is not None:  # None under `python -OO`
    _summary = inspect.cleandoc(FaultToleranceConfig.__doc__)
    _types = {each.name: str(each.type) for each in dataclasses.fields(FaultToleranceConfig)}
    FaultToleranceConfig.__doc__ = f"{_summary}\n\n{attributes(SETTINGS, _types)}\n"


def typed(
    values: Mapping[str, object], where: Callable[[str], str], ignore_not_recognized: bool = False
) -> dict[str, Any]:
    """What the grammars make of these settings; an unknown name is an error, or a warning in the log."""
    found = {}
    for name, value in values.items():
        if name in SETTINGS:
            found[name] = parse_with(SETTINGS[name].parse, value, where(name))
        elif name == "restart_policy":
            # Published configurations have it among the settings, although it is an option of the launcher.
            try:
                parse_with(grammar.restart_policy, value, where(name))
            except ConfigError as refused:
                if not ignore_not_recognized:
                    raise
                _log.warning("%s (ignored)", refused)
        else:
            near = grammar.nearest(str(name).replace("-", "_"), SETTINGS)
            effective = [key for key, option in SETTINGS.items() if not option.no_effect]
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(effective)}"
            problem = f"{where(name)}: there is no setting {str(name)!r}; {hint}"
            if not ignore_not_recognized:
                raise ConfigError(problem)
            _log.warning("%s (ignored)", problem)
    return found
