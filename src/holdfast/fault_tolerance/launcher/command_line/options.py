"""The command line of ``ft_launcher``: everything that torchrun takes, and the options of `ft_options`.

What always holds: options that came out of here are valid and complete, or nothing was started. torch is imported only
for values and options that need it.

Does not cover: the run directory (made and checked by `holdfast.journal`), and what torch does with its options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace

from holdfast.lazy import require_torch

from ...config_fields import Option, parse_with, resolve, whole
from ...config_sources import load
from ...errors import ConfigError
from .checks import check, check_log_files, check_script, without_effect
from .ft_options import OPTIONS, LauncherOptions, reports
from .scan import CommandLine, UnknownOption, Vocabulary, scan
from .torch_options import (
    TABLE,
    installed_options,
    installed_torch,
    options_of_torch,
    print_completion,
    rdzv_settings,
    unknown_variables,
)

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torch's own variable for ``--shutdown-timeout``, in seconds."""


def read(argv: Sequence[str], environ: Mapping[str, str]) -> LauncherOptions:
    """The options in `argv`, which is without the program's name, and in the ``PET_…`` variables of `environ`.

    Prints the text of ``--help`` and leaves with 0. Raises `ConfigError` for anything wrong, and `UnsupportedTorch`.
    """
    require_torch(installed_torch())
    line, known, warnings = _scan(argv, environ)
    if line.is_help:
        from .args_parser import help_text

        print(help_text(), end="")
        raise SystemExit(0)
    ours = [option for option in OPTIONS if not option.is_setting]
    values, origins = resolve(ours, line.ft, environ)
    launcher = {option.key: option.default for option in ours} | values
    resolved = load(
        line.ft,
        environ,
        launcher["cfg_path"],
        origins.get("cfg_path", "").partition("env ")[2],
        is_missing_ok=launcher["ignore_missing_cfg"],
    )
    given, torch_origins = _namespace(line, known, environ)

    def where(key: str) -> str:
        return torch_origins.get(key, f"--{key.replace('_', '-')}").removeprefix("env ")

    check(given, where)
    segment = resolved.config.segment or 1
    if not given.is_one_node and (given.least_nodes < segment or given.least_nodes % segment):
        raise ConfigError(
            f"segment: {segment} does not divide the {given.least_nodes} nodes of {where('nnodes')}"
        )
    check_log_files(launcher["per_cycle_applog_prefix"], launcher["launcher_log"])
    warnings += without_effect(rdzv_settings(given.rdzv_conf), where("rdzv_conf"))
    if "event_log_handler" in torch_origins:
        warnings.append(
            f"{where('event_log_handler')} has no effect: the events of the job are in its journal"
        )
    if "workers_stop_timeout" not in origins:
        theirs = given.shutdown_timeout
        if theirs is None and (text := environ.get(SHUTDOWN_TIMEOUT, "").strip()):
            theirs = parse_with(whole(0), text, SHUTDOWN_TIMEOUT)
        if theirs is not None:
            launcher["workers_stop_timeout"] = float(theirs)
    about = reports({**vars(resolved.config), **launcher})
    return LauncherOptions(
        torch=given,
        resolved=resolved,
        warnings=(*resolved.warnings, *about, *warnings),
        **{each.name: launcher[each.name] for each in fields(LauncherOptions) if each.name in launcher},
    )


def _scan(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[CommandLine, tuple[Option, ...], list[str]]:
    """The command line, torchrun's options, and a warning for each unknown variable.

    What our table lacks is searched in the installed torch's parser.
    """
    known = installed_options()
    warnings = unknown_variables(known, environ)
    try:
        line = scan(argv, Vocabulary(known))
        more = options_of_torch() if warnings else ()
    except UnknownOption:
        more = options_of_torch()
        if not more:
            raise
    if more:
        known += tuple(option for option in more if option.key not in {each.key for each in known})
        warnings = unknown_variables(known, environ)
        line = scan(argv, Vocabulary(known))
    return line, known, warnings


def _namespace(
    line: CommandLine, known: Sequence[Option], environ: Mapping[str, str]
) -> tuple[SimpleNamespace, dict[str, str]]:
    """torchrun's namespace with the script, and what set each option. Raises `ConfigError`."""
    values, origins = resolve(known, line.torch, environ)
    # An option that needs a newer torch has its default.
    given = SimpleNamespace(**{each.key: each.default for each in (*TABLE, *known)} | values)
    if given.print_completion:
        print_completion(given.print_completion)
    check_script(line.script, module=given.module, no_python=given.no_python, run_path=given.run_path)
    given.training_script, given.training_script_args = line.script, line.script_args
    given.has_node_rank = "node_rank" in origins or given.rdzv_backend == "static"
    return given, origins
