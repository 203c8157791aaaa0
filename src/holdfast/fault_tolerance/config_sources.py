"""Merges the settings of a job: built-in default < YAML < environment < command line.

All sources apply together, field by field, and the strongest that names a field wins it. Every source is checked
in full, also where a stronger one overrides it: a wrong value in a file is an error today, not on the day somebody
drops a flag. The origin of each value is kept, so the launcher can say which limits are in force and who set them.

Does not cover: the command line itself (`launcher.options`), and merging inside a value: section timeouts of a
stronger source replace those of a weaker one as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .config import FIELDS, FaultToleranceConfig, parse_field, parse_with, unknown_setting
from .config_fields import restart_policy
from .config_yaml import EmptyFile, MissingSection, YamlSection, read_section
from .errors import ConfigError
from .settings_history import names_of

if TYPE_CHECKING:
    import argparse

__all__ = ["Given", "GivenSettings", "ResolvedConfig", "load", "variables_of"]

PATH_VARIABLES = ("PET_FT_CFG_PATH", "PET_FT_PARAM_CFG_PATH", "PET_FAULT_TOL_CFG_PATH", "FAULT_TOL_CFG_PATH")
"""Environment variables that name the YAML file, the strongest first."""


class Given(NamedTuple):
    """A value as it was given, and by which flag, spelled as the user spelled it."""

    value: object
    flag: str


class CommandLine(Protocol):
    """What `load` needs to know of a command line; `launcher.options.LauncherOptions` is one."""

    @property
    def ft(self) -> Mapping[str, Given]: ...
    @property
    def cfg_path(self) -> str | None: ...
    @property
    def ignore_missing_cfg(self) -> bool: ...


@dataclass(frozen=True)
class GivenSettings:
    """The settings of a command line: field → value and flag, the YAML file, and whether it may be missing."""

    ft: Mapping[str, Given] = field(default_factory=dict)
    cfg_path: str | None = None
    ignore_missing_cfg: bool = False

    @classmethod
    def from_namespace(cls, args: argparse.Namespace) -> GivenSettings:
        """From the result of another program's argument parser; see `FaultToleranceConfig.from_args`."""
        ft = {}
        for name in FIELDS:
            value = _first(args, f"ft_{name}", f"ft_param_{name}")
            if value is not None:
                ft[name] = Given(value, f"--ft-{name.replace('_', '-')}")
        path = _first(args, "ft_cfg_path", "fault_tol_cfg_path")
        ignore = _first(args, "ignore_missing_fault_tol_cfg", "ft_ignore_missing_cfg")
        return cls(ft, None if path is None else str(path), bool(ignore))


@dataclass(frozen=True)
class ResolvedConfig:
    """The settings in force, and for each field its origin: ``default``, ``yaml FILE``, ``env NAME`` or ``--flag``."""

    config: FaultToleranceConfig
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def is_set(self, name: str) -> bool:
        """Whether the user set this field, as opposed to the built-in default."""
        return self.origins[name] != "default"


def load(options: CommandLine, environ: Mapping[str, str]) -> ResolvedConfig:
    """The settings in force for a launcher started with `options` in `environ`.

    Raises `ConfigError` with one line: where it was set (file and line, variable or flag), the key, the value and
    what is allowed.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(FIELDS, "default")
    section, warnings = _yaml(options, environ)
    if section is not None:
        for name, value in _known(section).items():
            values[name] = parse_field(name, value, section.where(name))
            origins[name] = f"yaml {section.path}"
    for name in FIELDS:
        for variable in variables_of(name):
            if environ.get(variable, "").strip():
                values[name] = parse_field(name, environ[variable], variable)
                origins[name] = f"env {variable}"
                break
    for name, given in options.ft.items():
        values[name] = parse_field(name, given.value, given.flag)
        origins[name] = given.flag
    return ResolvedConfig(FaultToleranceConfig(**values), origins, warnings)


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of setting `name`, the strongest first. An empty variable counts as not set."""
    return tuple(
        f"{prefix}_{each.upper()}" for each in names_of(name) for prefix in ("PET_FT", "PET_FT_PARAM")
    )


def _yaml(options: CommandLine, environ: Mapping[str, str]) -> tuple[YamlSection | None, tuple[str, ...]]:
    path, origin = options.cfg_path, ""
    if path is None:
        variable = next((name for name in PATH_VARIABLES if environ.get(name, "").strip()), None)
        if variable is None:
            return None, ()
        path, origin = environ[variable], f" (named by {variable})"
    try:
        return read_section(path), ()
    except MissingSection as problem:
        if options.ignore_missing_cfg:
            return None, ()
        # NeMo-Run exports FAULT_TOL_CFG_PATH for a file that it never writes, beside settings as flags. An empty file
        # sets nothing, so it contradicts no flag.
        if options.ft and (origin or isinstance(problem, EmptyFile)):
            return None, (f"{problem}{origin}; the settings of the command line apply",)
        raise ConfigError(f"{problem}{origin}") from None


def _known(section: YamlSection) -> dict[str, Any]:
    for name, value in section.values.items():
        if name == "restart_policy":
            # Published configurations have it here beside the settings, although it is an option of the launcher.
            parse_with(restart_policy, value, section.where(name))
        elif name not in FIELDS:
            raise unknown_setting(name, section.where(name))
    return {name: value for name, value in section.values.items() if name in FIELDS}


def _first(args: argparse.Namespace, *names: str) -> Any:
    return next((value for name in names if (value := getattr(args, name, None)) is not None), None)
