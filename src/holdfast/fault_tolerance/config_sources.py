"""Merges the settings of a job: built-in default < YAML < environment < command line.

Every source is checked in full, also where a stronger one overrides it: a wrong value in a file is an error today, not
on the day when a flag is dropped. The origin of each value is kept.

A YAML file is read as a tree of nodes, and only its ``fault_tolerance`` section becomes Python values. So errors name
the line, and a key that is given twice is an error (YAML would silently keep the last). The rest of the file belongs
to other programs, and may use tags of theirs. PyYAML is imported when a file is read: most jobs have none.

Does not cover: the command line itself (`launcher.command_line`); merging inside a value: section timeouts of a
stronger source replace those of a weaker one as a whole; interpolation such as OmegaConf's ``${…}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .config import SECTION, SETTINGS, FaultToleranceConfig, typed
from .config_fields import Given, nearest, resolve
from .errors import ConfigError

if TYPE_CHECKING:
    import argparse
    import os

    import yaml


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


def load_arguments(args: argparse.Namespace) -> ResolvedConfig:
    """From the result of another program's argument parser; see `FaultToleranceConfig.from_args`."""

    def first(*names: str) -> Any:
        return next((value for name in names if (value := getattr(args, name, None)) is not None), None)

    given = {}
    for name, option in SETTINGS.items():
        value = first(f"ft_{name}", f"ft_param_{name}")
        if value is not None:
            given[name] = Given(value, option.name)
    path = first("ft_cfg_path", "fault_tol_cfg_path")
    is_missing_ok = bool(first("ignore_missing_fault_tol_cfg", "ft_ignore_missing_cfg"))
    return load(given, {}, None if path is None else str(path), is_missing_ok=is_missing_ok)


def load(
    given: Mapping[str, Given],
    environ: Mapping[str, str],
    path: str | None = None,
    named_by: str = "",
    *,
    is_missing_ok: bool = False,
) -> ResolvedConfig:
    """The settings in force for a launcher with these settings on its command line.

    Args:
        path: The YAML file.
        named_by: The environment variable that named the file, if no flag did.
        is_missing_ok: Whether the file or its section may be missing.

    Raises:
        ConfigError: One line: where it was set (file and line, variable or flag), the key, the value and what is
            allowed.
    """
    warnings = []
    try:
        section = read_section(path) if path is not None else YamlSection("", {}, {})
    except MissingSection as problem:
        section = YamlSection("", {}, {})
        source = f" (named by {named_by})" if named_by else ""
        if is_missing_ok:
            pass
        elif any(key in SETTINGS for key in given) and (named_by or isinstance(problem, EmptyFile)):
            # NeMo-Run exports FAULT_TOL_CFG_PATH for a file that it never writes, and gives settings as flags. An empty
            # file sets nothing, so it contradicts no flag.
            warnings.append(f"{problem}{source}; the settings of the command line apply")
        else:
            raise ConfigError(f"{problem}{source}") from None
    values = typed(section.values, section.where)
    origins = dict.fromkeys(SETTINGS, "default") | dict.fromkeys(values, f"yaml {section.path}")
    stronger, their_origins = resolve(SETTINGS.values(), given, environ)
    config = FaultToleranceConfig(**values | stronger)
    return ResolvedConfig(config, origins | their_origins, tuple(warnings))


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
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(content)
        section = _find_section(loader.get_single_node(), name)
        _refuse_repeated_keys(section, name)
        lines = {key.value: key.start_mark.line + 1 for key, _ in _pairs(section)}
        return YamlSection(name, loader.construct_document(section) or {}, lines)
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    except Exception as error:
        # PyYAML's constructors let through whatever Python raises: `!!int ''` is an IndexError, `!!bool x` a KeyError.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{name}: not valid YAML: {reason}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _find_section(root: yaml.Node | None, path: str) -> yaml.Node:
    if root is None or _is_null(root):
        raise EmptyFile(f"{path}: the file is empty; expected a {SECTION!r} section")
    if _kind(root) != "mapping":
        kind = "a list" if _kind(root) == "sequence" else "a single value"
        raise ConfigError(f"{path}: the file is {kind}; expected keys, with a {SECTION!r} section among them")
    found = list(_sections(root, set()))
    # Another program's `fault_tolerance: true` does not count where there is a real section.
    real = [each for each in found if _kind(each) == "mapping" or _is_null(each)]
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
    if any(key in SETTINGS for key in keys):
        hint = f"; put the settings under {SECTION + ':'!r}"
    raise MissingSection(f"{path}: no {SECTION!r} section{hint}")


def _sections(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    """Every value of a key ``fault_tolerance`` below `node`, not searching inside those. Anchors may make cycles."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if _kind(node) == "sequence":
        for item in node.value:
            yield from _sections(item, seen)
    for key, value in _pairs(node):
        if key.value != SECTION:
            yield from _sections(value, seen)
        elif id(value) not in seen:
            seen.add(id(value))
            yield value


def _pairs(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    """Keys and values of a mapping; keys that are no plain words are not ours."""
    return (
        [(key, value) for key, value in node.value if _kind(key) == "scalar"]
        if _kind(node) == "mapping"
        else []
    )


def _kind(node: yaml.Node) -> str:
    """``mapping``, ``sequence`` or ``scalar``."""
    return str(node.id)  # type: ignore[attr-defined]  # PyYAML's stubs lack it


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
