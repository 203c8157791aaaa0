"""The command line of ``ft_launcher``: everything that torchrun takes, and the options of `ft_options`.

What always holds: options that came out of here are valid and complete, or nothing was started: a wrong one ends the
program with exit code 2 and one line on stderr. torch is imported only for values and options that need it.

Does not cover: the run directory (made and checked by `holdfast.journal`), and what torch does with its options.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from holdfast.torch_version import require_torch

from ...config import parse_with
from ...config_fields import nearest
from ...config_sources import GivenSettings, ResolvedConfig, load
from ...errors import ConfigError, UnsupportedTorch
from ...settings_history import reports
from ..warm.plan import Request
from .checks import check, check_script, elastic_shutdown_timeout, without_effect
from .ft_options import OPTIONS, variables
from .log_paths import check_log_files
from .scan import CommandLine, UnknownOption, Vocabulary, scan
from .torch_options import (
    TorchOption,
    installed_options,
    installed_torch,
    is_given,
    namespace,
    options_of_torch,
    print_completion,
    source_of,
    unknown_variables,
)

__all__ = ["LauncherOptions", "parse", "read"]

USAGE_ERROR = 2
Begin = Callable[[Request, "str | None"], None]
"""Called with the ranks, and of the run directory if one was given."""


@dataclass(frozen=True)
class LauncherOptions:
    """A command line that is understood and checked. Times are seconds; None is no limit."""

    torch: SimpleNamespace
    """torchrun's namespace with `training_script` and `training_script_args`; `nproc_per_node` is a number; and
    `has_node_rank`: the node's rank counts, since it was given or the rendezvous is static."""
    resolved: ResolvedConfig
    """The settings of supervision in force and the origin of each."""
    restarts_reset_on_progress: bool
    term_timeout: float | None
    workers_stop_timeout: float
    exit_timeout: float | None
    finished_timeout: float | None
    preempted_exit_code: int
    no_restart_exit_code: int
    run_dir: str | None
    warm_start: str
    preload: tuple[str, ...]
    ignore_optimizer_steps: bool
    early_detection: bool
    node_timeout: float
    per_cycle_applog_prefix: str | None
    launcher_log: str | None
    warnings: tuple[str, ...]
    """Lines to show once at the start: what was given and has no effect."""


@dataclass(frozen=True)
class _Settings:
    """What the command line and the environment set of our own options."""

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

    `begin` is called with the ranks and the run directory that was given as soon as the command line is checked.
    """
    require_torch(installed_torch())
    _refuse_unknown_variables(environ)
    line, known = _scan(argv, environ)
    if line.help:
        from .args_parser import help_text

        print(help_text(), end="")
        raise SystemExit(0)
    settings = _settings(line, environ)
    given = namespace(known, line.torch, environ)
    if getattr(given, "print_completion", None):
        print_completion(given.print_completion)
    check_script(line.script, module=given.module, no_python=given.no_python, run_path=given.run_path)
    given.training_script, given.training_script_args = line.script, line.script_args
    given.has_node_rank = is_given("node_rank", line.torch, environ) or given.rdzv_backend == "static"

    def where(dest: str) -> str:
        return source_of(dest, line.torch, environ)

    check(given, where)
    check_log_files(settings.launcher["per_cycle_applog_prefix"], settings.launcher["launcher_log"])
    if begin:
        has_signals = is_given("signals_to_handle", line.torch, environ)
        begin(_request(given, settings.launcher, has_signals=has_signals), settings.launcher["run_dir"])
    warnings = list(unknown_variables(known, environ).values())
    warnings += without_effect(given.rdzv_conf, where("rdzv_conf"))
    if is_given("event_log_handler", line.torch, environ):
        warnings.append(
            f"{where('event_log_handler')} has no effect: the events of the job are in its journal"
        )
    return _options(given, settings, environ, warnings)


def _scan(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[CommandLine, tuple[TorchOption, ...]]:
    """The command line, and torchrun's options. What our table lacks is searched in the installed torch's parser."""
    known = installed_options()
    try:
        line = scan(argv, Vocabulary(known))
    except UnknownOption:
        more = options_of_torch()
        if not more:
            raise
    else:
        more = options_of_torch() if unknown_variables(known, environ) else ()
    if more:
        known += tuple(option for option in more if option.dest not in {each.dest for each in known})
        line = scan(argv, Vocabulary(known))
    return line, known


def _request(given: SimpleNamespace, launcher: Mapping[str, Any], *, has_signals: bool) -> Request:
    """What the ranks will be, as far as it matters for starting them warm."""
    return Request(
        launcher["warm_start"],
        given.training_script,
        tuple(given.training_script_args),
        module=given.module,
        no_python=given.no_python,
        run_path=given.run_path,
        numa=getattr(given, "numa_binding", None) is not None,
        virtual_local_rank=getattr(given, "virtual_local_rank", False),
        several=given.nproc_per_node != "1",
        preload=launcher["preload"],
        signals=tuple(name.strip() for name in given.signals_to_handle.split(",")) if has_signals else (),
    )


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
    # The file named by a variable is left to `load`, whose errors name the variable.
    named = launcher["cfg_path"] if "cfg_path" in line.ft else None
    resolved = load(GivenSettings(ft, named, launcher["ignore_missing_cfg"]), environ)
    return _Settings(resolved, launcher, frozenset(was_set))


def _options(
    given: SimpleNamespace, settings: _Settings, environ: Mapping[str, str], warnings: Sequence[str]
) -> LauncherOptions:
    values = dict(settings.launcher)
    if "workers_stop_timeout" not in settings.was_set:
        theirs = getattr(given, "shutdown_timeout", None)  # new in torch 2.12
        theirs = elastic_shutdown_timeout(environ) if theirs is None else float(theirs)
        values["workers_stop_timeout"] = values["workers_stop_timeout"] if theirs is None else theirs
    asked = {**vars(settings.resolved.config), **settings.launcher}
    return LauncherOptions(
        torch=given,
        resolved=settings.resolved,
        warnings=(*settings.resolved.warnings, *reports(asked), *warnings),
        **{each.name: values[each.name] for each in fields(LauncherOptions) if each.name in values},
    )


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = variables()
    for name in environ:
        if name.startswith("PET_FT_") and name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else "unset it"
            raise ConfigError(f"environment variable {name}: there is no such setting; {hint}")
