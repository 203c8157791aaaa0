"""Merges the settings of a job: built-in default < YAML < environment < command line.

All sources apply together, field by field, and the strongest that names a field wins it. Every source is checked
in full, also where a stronger one overrides it: a wrong value in a file is an error today, not on the day when a flag
is dropped. The origin of each value is kept, so the launcher can log which timeouts are in force and who set them.

A YAML file is read as a tree of nodes, and only its ``fault_tolerance`` section becomes Python values. So errors name
the line, and a key that is given twice is an error (YAML would silently keep the last). The rest of the file belongs
to other programs, may use tags of theirs, and is left alone. PyYAML is imported when a file is read: most jobs have
none, and the launcher's start is measured.

Does not cover: the command line itself (`launcher.command_line`); merging inside a value: section timeouts of a
stronger source replace those of a weaker one as a whole; interpolation such as OmegaConf's ``${…}``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import FIELDS, SECTION, FaultToleranceConfig, parse_field, parse_with, unknown_setting
from .config_fields import nearest, restart_policy
from .errors import ConfigError
from .settings_history import names_of

if TYPE_CHECKING:
    import argparse
    import os

    import yaml

PATH_VARIABLES = ("PET_FT_CFG_PATH", "PET_FT_PARAM_CFG_PATH", "PET_FAULT_TOL_CFG_PATH", "FAULT_TOL_CFG_PATH")
"""Environment variables that name the YAML file, the strongest first."""


class Given(NamedTuple):
    """A value as it was given, and by which flag, spelled as the user spelled it."""

    value: object
    flag: str


@dataclass(frozen=True)
class GivenSettings:
    """The settings of a command line: field → value and flag, the YAML file, and whether it may be missing."""

    ft: Mapping[str, Given] = field(default_factory=dict)
    cfg_path: str | None = None
    ignore_missing_cfg: bool = False


@dataclass(frozen=True)
class ResolvedConfig:
    """The settings in force, and for each field its origin: ``default``, ``yaml FILE``, ``env NAME`` or ``--flag``."""

    config: FaultToleranceConfig
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def is_set(self, name: str) -> bool:
        """Whether the user set this field, as opposed to the built-in default."""
        return self.origins[name] != "default"


class MissingSection(ConfigError):
    """There is no such file, or no ``fault_tolerance`` section in it; ``--ft-ignore-missing-cfg`` forgives this."""


class EmptyFile(MissingSection):
    """The file has no content; forgiven where the command line has settings."""


@dataclass(frozen=True)
class YamlSection:
    """The settings of one file as YAML gives them, unchecked, with the line of each key (from 1)."""

    path: str
    values: dict[str, Any]
    lines: dict[str, int]

    def where(self, name: str) -> str:
        """``"ft.yaml, line 3, rank_heartbeat_timeout"`` for errors."""
        line = self.lines.get(name)
        return f"{self.path}, line {line}, {name}" if line else f"{self.path}, {name}"


def given_in(args: argparse.Namespace) -> GivenSettings:
    """The result of another program's argument parser; see `FaultToleranceConfig.from_args`."""

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(args, name, None)) is not None), None)

    ft = {}
    for name in FIELDS:
        value = first(f"ft_{name}", f"ft_param_{name}")
        if value is not None:
            ft[name] = Given(value, f"--ft-{name.replace('_', '-')}")
    path = first("ft_cfg_path", "fault_tol_cfg_path")
    ignore = first("ignore_missing_fault_tol_cfg", "ft_ignore_missing_cfg")
    return GivenSettings(ft, None if path is None else str(path), bool(ignore))


def load(options: GivenSettings, environ: Mapping[str, str]) -> ResolvedConfig:
    """The settings in force for a launcher started with `options` in `environ`.

    Raises `ConfigError` with one line: where it was set (file and line, variable or flag), the key, the value and
    what is allowed.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(FIELDS, "default")
    section, warnings = _section_of(options, environ)
    if section is not None:
        for name, value in section.values.items():
            if name == "restart_policy":
                # Published configurations have it among the settings, although it is an option of the launcher.
                parse_with(restart_policy, value, section.where(name))
                continue
            if name not in FIELDS:
                raise unknown_setting(name, section.where(name))
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


def _section_of(
    options: GivenSettings, environ: Mapping[str, str]
) -> tuple[YamlSection | None, tuple[str, ...]]:
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
        # NeMo-Run exports FAULT_TOL_CFG_PATH for a file that it never writes, and gives settings as flags. An empty
        # file sets nothing, so it contradicts no flag.
        if options.ft and (origin or isinstance(problem, EmptyFile)):
            return None, (f"{problem}{origin}; the settings of the command line apply",)
        raise ConfigError(f"{problem}{origin}") from None


def read_section(path: str | os.PathLike[str]) -> YamlSection:
    """The ``fault_tolerance`` section of the YAML file at `path`.

    Raises `MissingSection`, and `ConfigError` for a file that cannot be read or understood, for several sections,
    and for a section that is not a mapping. Each is one line that names the file, and the line where there is one.
    """
    import yaml

    name = str(path)
    try:
        with open(name, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingSection(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    with _one_line_errors(name):
        loader = yaml.SafeLoader(content)
        try:
            section = _find_section(loader.get_single_node(), name)
            _refuse_repeated_keys(section, name)
            lines = {key.value: key.start_mark.line + 1 for key, _ in _pairs(section)}
            return YamlSection(name, loader.construct_document(section) or {}, lines)
        finally:
            loader.dispose()


@contextlib.contextmanager
def _one_line_errors(path: str) -> Iterator[None]:
    import yaml

    try:
        yield
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}" if mark else path
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except Exception as error:
        # PyYAML's constructors let through whatever Python raises: `!!int ''` is an IndexError, `!!bool x` a KeyError.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: not valid YAML: {reason}") from None


def _find_section(root: yaml.Node | None, path: str) -> yaml.Node:
    import yaml

    if root is None or _is_null(root):
        raise EmptyFile(f"{path}: the file is empty; expected a {SECTION!r} section")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(f"{path}: the file is {kind}; expected keys, with a {SECTION!r} section among them")
    found = list(_sections(root, set()))
    # Another program's `fault_tolerance: true` does not count where there is a real section.
    real = [each for each in found if isinstance(each, yaml.MappingNode) or _is_null(each)]
    if len(real) > 1:
        lines = " and ".join(str(each.start_mark.line + 1) for each in real[:2])
        raise ConfigError(f"{path}: more than one {SECTION!r} section (see lines {lines}); keep one")
    if real:
        return real[0]
    if found:
        line = found[0].start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: {SECTION!r} is not a section of settings (KEY: VALUE lines)")
    keys = [key.value for key, _ in _pairs(root)]
    near = nearest(SECTION, keys)
    hint = f"; was it meant by {near!r}?" if near else ""
    if any(key in FIELDS for key in keys):
        hint = f"; put the settings under {SECTION + ':'!r}"
    raise MissingSection(f"{path}: no {SECTION!r} section{hint}")


def _sections(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    """Every value of a key ``fault_tolerance`` below `node`, not searching inside those. Anchors may make cycles."""
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _sections(item, seen)
    for key, value in _pairs(node):
        if key.value != SECTION:
            yield from _sections(value, seen)
        elif id(value) not in seen:
            seen.add(id(value))
            yield value


def _pairs(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a mapping; keys that are no plain words are not ours."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key, value


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _refuse_repeated_keys(section: yaml.Node, path: str) -> None:
    first: dict[str, int] = {}
    for key, value in _pairs(section):
        line = key.start_mark.line + 1
        if key.value in first and key.value != "<<":
            raise ConfigError(
                f"{path}, line {line}: {key.value!r} is given twice (see line {first[key.value]})"
            )
        first[key.value] = line
        _refuse_repeated_keys(value, path)
