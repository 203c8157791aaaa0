"""The command line of ``ft_launcher``: everything that torchrun takes, and the options of `ft_options`.

What always holds: options that came out of here are valid and complete, or nothing was started: a wrong one ends the
program with exit code 2 and one line on stderr. Settings are checked before torch is imported.

Does not cover: the run directory (made and checked by `holdfast.journal`), and what torch does with its options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.torch_version import require_torch

from ...config import parse_with
from ...config_fields import nearest
from ...config_sources import Given, GivenSettings, ResolvedConfig, load
from ...errors import ConfigError, UnsupportedTorch
from ...settings_history import HISTORY, reports
from ..warm.plan import Request
from .ahead_of_torch import request, switches
from .ft_options import OPTIONS, variables
from .option_spellings import CommandLine, UnknownOption, scan
from .rendezvous_options import without_effect
from .torch_checks import check, elastic_shutdown_timeout
from .torch_options import (
    build_parser,
    is_given,
    known_vocabulary,
    parse_torch,
    source_of,
    unknown_variables,
    vocabulary_of,
)
from .training_script import check_script

__all__ = ["LauncherOptions", "parse", "read"]

USAGE_ERROR = 2
Begin = Callable[[Request, "str | None"], None]
"""Told of the ranks, and of the run directory if one was given."""


@dataclass(frozen=True)
class LauncherOptions:
    """A command line that is understood and checked. Times are seconds; None is no limit."""

    torch: argparse.Namespace
    """torchrun's own namespace, as torch's parser gives it, with `training_script`, `training_script_args`, and
    `has_node_rank`: the node's rank counts, since it was given or the rendezvous is static."""
    resolved: ResolvedConfig
    """The settings of supervision in force and the origin of each."""
    ft: Mapping[str, Given]
    """The settings that the command line gave, as text, with the flag as it was spelled."""
    cfg_path: str | None
    ignore_missing_cfg: bool
    restart_policy: str
    restarts_reset_on_progress: bool
    term_timeout: float | None
    workers_stop_timeout: float
    preempted_exit_code: int
    run_dir: str | None
    warm_start: str
    preload: tuple[str, ...]
    ignore_optimizer_steps: bool
    early_detection: bool
    node_timeout: float
    warnings: tuple[str, ...]
    """Lines to show once at the start: what was given and has no effect."""


@dataclass(frozen=True)
class _Settings:
    """What the command line and the environment say about our own options."""

    given: GivenSettings
    resolved: ResolvedConfig
    launcher: Mapping[str, Any]
    was_set: frozenset[str]


def parse(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None, begin: Begin | None = None
) -> LauncherOptions:
    """The options in `argv` (default: this program's); ``PET_…`` variables of our options are read from `environ`.

    Prints and leaves with 0 for ``--help``; leaves with 2 after one line on stderr for anything wrong.
    """
    try:
        return read(sys.argv[1:] if argv is None else argv, os.environ if environ is None else environ, begin)
    except (ConfigError, UnsupportedTorch) as error:
        line = " ".join(str(error).split())
        print(f"ft_launcher: error: {line}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


def read(argv: Sequence[str], environ: Mapping[str, str], begin: Begin | None = None) -> LauncherOptions:
    """As `parse`, but raises `ConfigError` for anything wrong, and `UnsupportedTorch`.

    `begin` is told of the ranks and of the run directory that was given as soon as they are known, which is mostly
    before torch is imported.
    """
    require_torch()
    _refuse_unknown_variables(environ)
    early = _without_torch(argv, environ)
    if early and begin:
        begin(early[1], early[0].launcher["run_dir"])
    parser = build_parser()
    line = scan(argv, vocabulary_of(parser))
    if line.help:
        from .help import help_text

        print(help_text(parser), end="")
        raise SystemExit(0)
    settings = early[0] if early else _settings(line, environ)
    namespace = parse_torch(parser, line.torch)
    check(namespace, lambda name: source_of(name, line.torch))
    check_script(
        line.script, module=namespace.module, no_python=namespace.no_python, run_path=namespace.run_path
    )
    namespace.has_node_rank = is_given("node_rank", line.torch) or namespace.rdzv_backend == "static"
    namespace.training_script, namespace.training_script_args = line.script, line.script_args
    if begin and not early:
        begin(request(line, settings.launcher, environ), settings.launcher["run_dir"])
    warnings = unknown_variables(parser, environ)
    warnings += without_effect(namespace.rdzv_conf, source_of("rdzv_conf", line.torch))
    if is_given("event_log_handler", line.torch):
        where = source_of("event_log_handler", line.torch)
        warnings.append(f"{where} has no effect: the events of the job are in its journal")
    return _options(namespace, settings, environ, warnings)


def _without_torch(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[_Settings, Request] | None:
    """Our settings, and a look at the script, as far as they can be known without torch's list of options."""
    try:
        line = scan(argv, known_vocabulary())
    except UnknownOption:
        return None
    if line.help:
        return None
    settings = _settings(line, environ)
    check_script(line.script, **switches(line, environ))
    return settings, request(line, settings.launcher, environ)


def _settings(line: CommandLine, environ: Mapping[str, str]) -> _Settings:
    launcher: dict[str, Any] = {}
    was_set = set()
    for option in OPTIONS:
        if option.is_setting:
            continue
        launcher[option.key] = option.default
        variable = next((name for name in option.variables if environ.get(name, "").strip()), None)
        if variable is not None:
            launcher[option.key] = parse_with(option.parse, environ[variable], variable)
            was_set.add(option.key)
        if option.key in line.ft:
            given = line.ft[option.key]
            launcher[option.key] = parse_with(option.parse, given.value, given.flag)
            was_set.add(option.key)
    ft = {key: given for key, given in line.ft.items() if key not in launcher}
    # The file named by a variable is left to `load`, which says in its errors who named it.
    named = launcher["cfg_path"] if "cfg_path" in line.ft else None
    settings = GivenSettings(ft, named, launcher["ignore_missing_cfg"])
    return _Settings(settings, load(settings, environ), launcher, frozenset(was_set))


def _options(
    namespace: argparse.Namespace, settings: _Settings, environ: Mapping[str, str], warnings: Sequence[str]
) -> LauncherOptions:
    values = dict(settings.launcher)
    if "workers_stop_timeout" not in settings.was_set:
        theirs = getattr(namespace, "shutdown_timeout", None)  # new in torch 2.12
        theirs = elastic_shutdown_timeout(environ) if theirs is None else float(theirs)
        values["workers_stop_timeout"] = values["workers_stop_timeout"] if theirs is None else theirs
    return LauncherOptions(
        torch=namespace,
        resolved=settings.resolved,
        ft=settings.given.ft,
        cfg_path=settings.given.cfg_path,
        warnings=(*settings.resolved.warnings, *_without_effect(settings), *warnings),
        **{key: value for key, value in values.items() if key != "cfg_path" and key not in HISTORY},
    )


def _without_effect(settings: _Settings) -> list[str]:
    """What the user asked for and does not get."""
    return reports({**vars(settings.resolved.config), **settings.launcher})


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = variables()
    for name in environ:
        if name.startswith("PET_FT_") and name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else "unset it"
            raise ConfigError(f"environment variable {name}: there is no such setting; {hint}")
