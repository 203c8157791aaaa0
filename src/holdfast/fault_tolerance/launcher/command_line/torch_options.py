"""torchrun's options: one table, good for all supported versions of torch, so that a command line needs no torch.

Values that torch would refuse late, by assertion or not at all, are refused by their grammar here. torch is imported
only for ranks per GPU or accelerator, and for another event log handler than torch's own two.

A test compares the table with the installed torch's own parser. An option that the table lacks is searched in the
parser of a torch that is newer than the tested ones or has a special build (:func:`options_of_torch`, which imports
torch).

What differs from torchrun on purpose: errors are one line, the default of ``--signals-to-handle`` has SIGUSR1 and
SIGUSR2 too (Slurm's and Lightning's preemption signals), and the script's arguments are never parsed.

Does not cover: whether values make sense together (`checks`).
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.lazy import NEWEST_TORCH, release, torch_version

from ...config_fields import TORCH, Option, boolean, did_you_mean, factor, matching, one_of, signal_of, whole
from ...errors import ConfigError
from .ft_options import OPTIONS

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
OWN_HANDLERS = {"null", "console"}
"""Event log handlers that each torch has."""
SWITCH = {"1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"}  # as torch's get_as_bool has it


def _switch(value: str) -> bool:
    try:
        return bool(int(value))
    except ValueError:
        raise ValueError("give 0 or 1") from None


def _list(value: str) -> list[str]:
    """Separated by commas; two of them are one comma."""
    return [item.replace("\0", ",") for item in value.replace(",,", "\0").split(",")]


def _nnodes(value: str) -> str:
    parts = value.split(":")
    if not 1 <= len(parts) <= 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError("give a number of nodes, or MIN:MAX")
    if not 1 <= int(parts[0]) <= int(parts[-1]):
        raise ValueError("give at least 1 node, and MIN not above MAX")
    return value


def _nproc_per_node(value: str) -> str:
    if value.strip().isdecimal() and int(value) > 0:
        return value.strip()
    if value == "cpu":
        return str(len(os.sched_getaffinity(0)))  # as torch has it, without its import
    import torch
    from torch.distributed.run import determine_local_world_size

    if value not in {"auto", "cpu", "gpu", "xpu", torch._C._get_privateuse1_backend_name()}:
        raise ValueError("give a number of ranks greater than 0, or auto, cpu, gpu or xpu")
    if value == "gpu" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU on this node; give a number, cpu or auto")
    if value == "xpu" and not torch.xpu.is_available():
        raise ValueError("torch finds no XPU on this node; give a number, cpu or auto")
    return str(determine_local_world_size(value))


_streams = matching(
    r"[0-3]|\d:[0-3](,\d:[0-3])*",
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each local rank, like 0:3,1:1",
)
_ranks = matching(r"(\s*\d+\s*(,\s*\d+\s*)*)?", "local ranks, like 0,1,2")


def _signals(value: str) -> str:
    names = [signal_of(part) for part in value.split(",")]
    never = [each.name for each in names if each in (signal.SIGKILL, signal.SIGSTOP)]
    if never:
        raise ValueError(f"no program can catch {never[0]}")
    return ",".join(each.name for each in names)


def _logs_specs(value: str) -> str:
    from importlib import metadata

    if not metadata.entry_points(group="torchrun.logs_specs", name=value):
        raise ValueError("no installed package offers it (entry points of the group torchrun.logs_specs)")
    return value


def _event_log_handler(value: str) -> str:
    if value in OWN_HANDLERS:
        return value
    from torch.distributed.elastic.events import handlers

    try:
        handlers.get_logging_handler(value)
    except KeyError:
        raise ValueError(f"give one of {', '.join(sorted(handlers._log_handlers))}") from None
    return value


def _rdzv_conf(value: str) -> str:
    rdzv_settings(value)
    return value


def rdzv_settings(value: str) -> dict[str, str]:
    """The keys and values of ``--rdzv-conf``. Raises `ValueError` for those that torch would stumble over."""
    found = {}
    for entry in value.split(",") if value.strip() else []:
        key, _, given = (part.strip() for part in entry.partition("="))
        if not key or not given:
            raise ValueError(f"{entry.strip()!r} is not KEY=VALUE")
        if key.endswith(("timeout", "interval", "max_attempt")) and not (
            given.isdecimal() and int(given) > 0
        ):
            raise ValueError(f"{key} has {given!r}; give a whole number greater than 0")
        if key == "is_host" and given.lower() not in SWITCH:
            raise ValueError(f"{key} has {given!r}; give 0 or 1")
        if key == "store_type" and given.lower() != "tcp":
            raise ValueError(f"{key} has {given!r}; give tcp")
        found[key] = given
    return found


def _option(
    name: str,
    metavar: str,
    meaning: str,
    default: object = None,
    parse: Callable[[Any], Any] = str,
    letter: str = "",
    since: str = "",
    has_variable: bool = True,
) -> Option:
    key = name.replace("-", "_")
    variables = (f"PET_{key.upper()}",) if has_variable else ()
    return Option(key, parse, default, metavar, meaning, TORCH, (name,), variables, letter, since)


# fmt: off
TABLE = (
    _option("nnodes", "MIN:MAX", "number of nodes, or a range", "1:1", _nnodes),
    _option("nproc-per-node", "N", "ranks per node: a number, auto, cpu, gpu or xpu", "1", _nproc_per_node),
    _option("rdzv-backend", "NAME", "c10d, or static, which is served by a c10d store on node 0", "static"),
    _option("rdzv-endpoint", "HOST:PORT", "of the rendezvous store", ""),
    _option("rdzv-id", "ID", "of the job, the same on every node", "none"),
    _option("rdzv-conf", "KEY=VALUE,...", "more settings of the rendezvous", "", _rdzv_conf),
    _option("standalone", "", "one node; the options of the rendezvous are ignored", False, _switch),
    _option("max-restarts", "N", "restarts of all ranks before the job fails", 0, whole(0)),
    _option("monitor-interval", "SECONDS", "has no effect: exits of ranks are events", 0.1, factor),
    _option("start-method", "NAME", "has no effect: each rank is a program of its own", "spawn",
            one_of("spawn", "fork", "forkserver")),
    _option("event-log-handler", "NAME", "has no effect: the events of the job are in its journal", "null",
            _event_log_handler),
    _option("role", "NAME", "name of the ranks in log lines and in ROLE_NAME", "default"),
    _option("module", "", "the script is a module, run as with python -m", False, _switch, "m"),
    _option("no-python", "", "the script is a program of its own, not run by python", False, _switch),
    _option("run-path", "", "run the script by runpy.run_path; takes precedence over --no-python", False, _switch),
    _option("log-dir", "DIR", "folder for the logs of the ranks"),
    _option("redirects", "STREAMS", "streams to write to files: 0, 1 (stdout), 2 (stderr), 3, or RANK:STREAM,...", "0",
            _streams, "r"),
    _option("tee", "STREAMS", "streams to write to files and to the console, as --redirects", "0", _streams, "t"),
    _option("log-line-prefix-template", "TEXT", "prefix of lines of --tee; has ${role_name}, ${local_rank}, ${rank}, "
            "${hostname}", "", since="2.15"),
    _option("local-ranks-filter", "RANKS", "show only the output of these local ranks, like 0,1", "", _ranks),
    _option("duplicate-stdout-filters", "WORDS", "copy lines of --tee with one of these words to a file", [], _list,
            since="2.10"),
    _option("duplicate-stderr-filters", "WORDS", "as --duplicate-stdout-filters, for stderr", [], _list, since="2.10"),
    _option("node-rank", "N", "number of this node", 0, whole(-1)),
    _option("master-addr", "HOST", "address of node 0, for --rdzv-backend static", "127.0.0.1"),
    _option("master-port", "PORT", "port on node 0, for --rdzv-backend static [29500]", None, whole(0, 65535)),
    _option("local-addr", "HOST", "address of this node, where it cannot be found"),
    _option("logs-specs", "NAME", "entry point of the group torchrun.logs_specs that decides on log files", None,
            _logs_specs, has_variable=False),
    _option("numa-binding", "NAME", "bind each rank to the processors of its GPU", None,
            one_of("node", "socket", "exclusive", "core-complex"), since="2.9", has_variable=False),
    # New in torch 2.10, but does not depend on torch.
    _option("signals-to-handle", "SIGNALS", "signals to pass on to the ranks", SIGNALS, _signals),
    _option("shutdown-timeout", "SECONDS", "as --workers-stop-timeout, which takes precedence", None, whole(0),
            since="2.12"),
    _option("virtual-local-rank", "", "each rank has LOCAL_RANK 0 and sees only its own GPU", False, _switch,
            since="2.10"),
    _option("print-completion", "SHELL", "print torchrun's completion for a shell, and exit", since="2.15",
            has_variable=False),
    _option("help", "", "show this text", False, boolean, "h", has_variable=False),
)
# fmt: on
"""`since` is the first version of torch that has the option, where that is not the oldest supported one."""


def installed_torch() -> str:
    """The version of the torch of this environment; empty without one.

    By the name of the folder with its metadata: to import importlib.metadata takes longer than all that the launcher
    does until it starts the ranks.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("torch-") and name.endswith(".dist-info"):
                return name[len("torch-") : -len(".dist-info")]
    return torch_version()


def installed_options() -> tuple[Option, ...]:
    """The options of the installed torch; all of the table where its version is unknown."""
    version = installed_torch()
    return tuple(each for each in TABLE if not version or release(version) >= release(each.since))


def print_completion(shell: str) -> None:
    """torch's own answer to ``--print-completion``, which ends the program."""
    from torch.distributed.run import get_args_parser

    get_args_parser().parse_args(["--print-completion", shell])


def options_of_torch() -> tuple[Option, ...]:
    """Those of the installed torch's parser, if that may have others than the table. May import torch (seconds)."""
    version = installed_torch()
    if re.fullmatch(r"[\d.]+(\+[\w.]+)?", version) and release(version) <= NEWEST_TORCH:
        return ()  # a release that the table has been compared with
    from torch.distributed.run import get_args_parser

    try:
        actions = get_args_parser()._actions
    except ValueError:  # the variable of a switch is no number, which `resolve` reports
        return ()
    found = []
    for action in actions:
        names = [each[2:].replace("_", "-") for each in action.option_strings if each.startswith("--")]
        letters = [each[1:] for each in action.option_strings if not each.startswith("--")]
        if names:
            parse: Any = one_of(*map(str, action.choices)) if action.choices else action.type or str
            metavar, parse = ("", _switch) if action.nargs == 0 else ("VALUE", parse)
            letter = letters[0] if letters else ""
            found.append(_option(names[0], metavar, action.help or "", action.default, parse, letter))
    return tuple(found)


def unknown_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[str]:
    """A warning for each ``PET_…`` variable that neither torchrun nor we have: torchrun ignores them silently.

    Raises `ConfigError` for one that begins as ours do.
    """
    known = {variable for option in (*options, *OPTIONS) for variable in option.variables}
    known |= {
        f"PET_{each.key.upper()}" for each in options
    }  # also of one that torch reads from its flag only
    newer = {variable for option in TABLE for variable in option.variables} - known
    found = []
    for name in sorted(name for name in environ if name.startswith("PET_") and name not in known):
        hint = did_you_mean(name, known, "unset it")
        if name.startswith("PET_FT_"):
            raise ConfigError(f"environment variable {name}: there is no such setting; {hint}")
        why = f"ft_launcher has no such option; {hint}"
        if name in newer:
            why = "it needs a newer torch than the installed one"
        found.append(f"environment variable {name} has no effect: {why}")
    return found
