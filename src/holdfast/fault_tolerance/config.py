"""`FaultToleranceConfig`: the settings of supervision, their defaults and their meaning.

YAML keys, environment variables, ``--ft-…`` flags, ``--help`` and the docs are all made from the fields of this
dataclass. A config that exists is valid: every value went through its grammar (`config_fields`), so readers never
check again. Assigning to a field later is possible and not checked.

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
from .errors import ConfigError
from .settings_history import HISTORY, OLDEST, field_of

if TYPE_CHECKING:
    import argparse
    import os

__all__ = ["ConfigError", "FaultToleranceConfig"]

SECTION = "fault_tolerance"
"""The YAML key of the settings."""

WIDTH = 92
"""Columns of a line of a docstring; `help` indents that of a class by up to 8 more."""

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

_log = logging.getLogger(__name__)


def _about(
    parse: Callable[[object], object], metavar: str, meaning: str, since: str = OLDEST
) -> dict[str, Any]:
    return {"parse": parse, "metavar": metavar, "help": meaning, "since": since}


@dataclass
class FaultToleranceConfig:
    """Settings of the supervision of ranks. Times are seconds; a timeout of None is no limit.

    Values may be given as text, as on the command line (``"60"``, ``"SIGTERM"``, ``"step:180"``); a field always
    holds its proper type afterwards. Raises `ConfigError` (a `ValueError`) for a value that is not allowed.

    Does not cover: whether timeouts fit the job. A timeout shorter than a healthy step kills a healthy rank.
    """

    workload_check_interval: float = field(
        default=5.0,
        metadata=_about(
            grammar.seconds, "SECONDS", "longest sleep of the monitor; deadlines are met exactly anyway"
        ),
    )
    initial_rank_heartbeat_timeout: float | None = field(
        default=3600.0,
        metadata=_about(grammar.limit, "SECONDS", "from a rank's start to its first heartbeat or section"),
    )
    rank_heartbeat_timeout: float | None = field(
        default=2700.0, metadata=_about(grammar.limit, "SECONDS", "longest time between two heartbeats")
    )
    rank_section_timeouts: dict[str, float | None] = field(
        default_factory=dict,
        metadata=_about(
            grammar.sections, "NAME:SECONDS,...", "longest time in each section, like setup:600,step:180"
        ),
    )
    rank_out_of_section_timeout: float | None = field(
        default=None, metadata=_about(grammar.limit, "SECONDS", "longest time with no section open")
    )
    node_health_check_interval: float | None = field_of("node_health_check_interval")
    safety_factor: float = field(
        default=5.0,
        metadata=_about(grammar.factor, "FACTOR", "learned timeout = FACTOR x longest duration observed"),
    )
    rank_termination_signal: signal.Signals = field(
        default=signal.SIGKILL,
        metadata=_about(grammar.signal_of, "SIGNAL", "first signal to a hung rank; SIGKILL follows"),
    )
    log_level: int = field(
        default=logging.INFO,
        metadata=_about(grammar.log_level, "LEVEL", "DEBUG, INFO, WARNING, ERROR, CRITICAL or a number"),
    )
    restart_check_interval: float | None = field_of("restart_check_interval")
    enable_nic_monitor: bool = field_of("enable_nic_monitor")
    pci_topo_file: str | None = field_of("pci_topo_file")
    link_down_path_template: str | None = field_of("link_down_path_template")
    # Of 0.5 and later.
    skip_section_response: bool = field_of("skip_section_response")
    use_infra_group_rank: bool = field(
        default=True,
        metadata=_about(
            grammar.boolean, "BOOL", "order nodes by SLURM_PROCID or GROUP_RANK, if set, then name", "0.5"
        ),
    )
    enable_nic_healthcheck: bool = field_of("enable_nic_healthcheck")
    link_state_path_template: str | None = field_of("link_state_path_template")
    enable_dist_storage_healthcheck: bool = field_of("enable_dist_storage_healthcheck")
    storage_healthcheck_path: str | None = field_of("storage_healthcheck_path")
    segment: int | None = field_of("segment")
    numa_bind_strict: bool = field_of("numa_bind_strict")
    gpu_memory_reclaim_timeout: float | None = field_of("gpu_memory_reclaim_timeout")
    gpu_memory_tolerance_mb: float | None = field_of("gpu_memory_tolerance_mb")
    gpu_memory_poll_interval: float | None = field_of("gpu_memory_poll_interval")
    check_remaining_processes: bool = field_of("check_remaining_processes")
    max_no_progress_cycles: int = field(
        default=2,
        metadata=_about(
            grammar.whole(-1),
            "CYCLES",
            "failed cycles in a row that saved nothing new: the job ends",
            "0.6",
        ),
    )
    min_progress_iterations: int = field(
        default=1,
        metadata=_about(
            grammar.whole(0), "ITERATIONS", "growth of that number that counts as progress", "0.6"
        ),
    )
    checkpoint_iteration_file: str | None = field(
        default=None,
        metadata=_about(
            grammar.text, "FILE", "has the last checkpoint's iteration: measures progress", "0.6"
        ),
    )
    install_exception_hook: bool = field(
        default=False,
        metadata=_about(
            grammar.boolean,
            "BOOL",
            "end a rank at once after an uncaught exception",
            "0.6",
        ),
    )
    num_warmup_iterations: int = field(
        default=0,
        metadata=_about(
            grammar.whole(0),
            "ITERATIONS",
            "first steps of a cycle that may take as long as the initial timeout",
            "0.6",
        ),
    )
    cycle_info_dir: str | None = field_of("cycle_info_dir")
    attribution_endpoint: str | None = field_of("attribution_endpoint")
    attribution_stop_action: str | None = field_of("attribution_stop_action")
    attribution_export_url: str | None = field_of("attribution_export_url")

    def __post_init__(self) -> None:
        for name in FIELDS:
            setattr(self, name, parse_field(name, getattr(self, name), name))

    @classmethod
    def from_kwargs(cls, ignore_not_recognized: bool = True, **kwargs: object) -> FaultToleranceConfig:
        """A config of these settings, defaults for the rest.

        An unknown name is left out with a warning in the log, or refused (`ConfigError`) when
        `ignore_not_recognized` is False.
        """
        return cls(**_recognized(kwargs, ignore_not_recognized))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> FaultToleranceConfig:
        """The config that `to_dict` gave; an unknown name is an error."""
        return cls(**_recognized(values, False))

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
        values = _recognized(section.values, ignore_not_recognized, section.where)
        return cls(**{name: parse_field(name, value, section.where(name)) for name, value in values.items()})

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> FaultToleranceConfig:
        """The config of a parsed command line: built-in default < YAML < arguments.

        Reads ``ft_cfg_path`` (older: ``fault_tol_cfg_path``), ``ft_<setting>`` (older: ``ft_param_<setting>``) and
        ``ignore_missing_fault_tol_cfg`` (``ft_ignore_missing_cfg``); an absent attribute, or None, was not given.
        As strict as the command line of ``ft_launcher``. Raises `ConfigError`.
        """
        from .config_sources import given_in, load

        return load(given_in(args), environ={}).config

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values, JSON-serialisable; the signal and a standard log level by name.

        Settings that NVRx 0.4 does not have are left out at their default: it refuses a file with unknown keys.
        """
        values = dataclasses.asdict(self)
        values["rank_termination_signal"] = grammar.signal_of(self.rank_termination_signal).name
        values["log_level"] = grammar.log_level_name(grammar.log_level(self.log_level))
        later = {name: each.default for name, each in FIELDS.items() if each.metadata["since"] != OLDEST}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    def to_yaml_file(self, cfg_path: str | os.PathLike[str]) -> None:
        """Write all settings as a YAML file that `from_yaml_file` and ``--ft-cfg-path`` read. Raises `OSError`."""
        import yaml

        with open(cfg_path, "w", encoding="utf-8") as file:
            yaml.safe_dump({SECTION: self.to_dict()}, file, sort_keys=False)


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(FaultToleranceConfig)}
"""Every setting by name, in the order of the documentation; ``metadata`` has parse, metavar and help."""


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


def attributes(fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    """The section ``Attributes:`` of a docstring; every field with its type, meaning, unit and default."""
    items = [(f"{name} ({each.type})", _described(name, each)) for name, each in fields.items()]
    return docstring_section("Attributes", items)


def _described(name: str, field: dataclasses.Field[Any]) -> str:
    metavar = field.metadata["metavar"]
    unit = UNITS.get(metavar, f"Unit: {metavar}")
    if "None" in str(field.type):
        unit += "; None is no limit" if "SECONDS" in metavar else ", or None"
    default: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if isinstance(default, signal.Signals):
        default = default.name
    elif name == "log_level":
        default = logging.getLevelName(default)
    else:
        default = f"{default:g}" if isinstance(default, float) else repr(default)
    return f"{field.metadata['help']}. {unit}. Default: {default}."


if FaultToleranceConfig.__doc__ is not None:  # None under `python -OO`
    _summary = inspect.cleandoc(FaultToleranceConfig.__doc__)
    FaultToleranceConfig.__doc__ = f"{_summary}\n\n{attributes(FIELDS)}\n"


def parse_field(name: str, value: object, where: str) -> Any:
    """The typed value of setting `name`. Raises `ConfigError`, as `parse_with` does."""
    return parse_with(FIELDS[name].metadata["parse"], value, where)


def parse_with(parse: Callable[[object], Any], value: object, where: str) -> Any:
    """What `parse` makes of `value`. Its `ValueError` becomes a `ConfigError` naming where, the value and the rule."""
    try:
        return parse(value)
    except ValueError as problem:
        raise ConfigError(f"{where}: {shown(value)} is not allowed: {problem}") from None


def shown(value: object) -> str:
    """`value` for an error line: short, on one line."""
    words = repr(value)
    return words if len(words) <= 80 else words[:77] + "…"


def unknown_setting(name: object, where: str) -> ConfigError:
    """The error for a key that no setting has; offers the nearest one."""
    near = grammar.nearest(str(name).replace("-", "_"), FIELDS)
    effective = [each for each in FIELDS if each not in HISTORY]
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(effective)}"
    return ConfigError(f"{where}: there is no setting {str(name)!r}; {hint}")


def _recognized(
    values: Mapping[str, object],
    ignore_not_recognized: bool,
    where: Callable[[str], str] = lambda name: "FaultToleranceConfig",
) -> dict[str, Any]:
    unknown = [unknown_setting(name, where(name)) for name in values if name not in FIELDS]
    if unknown and not ignore_not_recognized:
        raise unknown[0]
    for each in unknown:
        _log.warning("%s (ignored)", each)
    return {name: value for name, value in values.items() if name in FIELDS}
