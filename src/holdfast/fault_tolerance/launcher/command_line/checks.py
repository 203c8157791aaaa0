"""Checks of a command line before anything starts: values that torch would refuse late, by assertion or not at all.

What always holds: after :func:`check` and :func:`check_script` nothing about the command line can fail any more that
could have been found from the command line, the environment and the files on this node. A key of ``--rdzv-conf`` that
has no effect is a warning, as torch accepts any. torch is imported only for values that need it: ranks per GPU, and
another event log handler than torch's own two.

Of a module (``-m``) only the first part of its name is searched, as importing the rest would run the user's code in
the launcher; and only where the ranks' Python is this one.

Does not cover: a submodule that does not exist, a package without ``__main__``, scripts that exist on this node and
not on another, and whether an endpoint is reachable; its name may resolve later.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import SimpleNamespace

from ...config import parse_with
from ...config_fields import nearest, signal_of
from ...errors import ConfigError
from ..rendezvous import parse_endpoint

__all__ = [
    "NO_ID",
    "check",
    "check_script",
    "elastic_shutdown_timeout",
    "rdzv_settings",
    "without_effect",
]

Where = Callable[[str], str]
NO_ID = "none"  # torchrun's default for --rdzv-id
SWITCH = {"1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"}  # as torch's get_as_bool has it
STREAMS = re.compile(r"[0-3]|\d:[0-3](,\d:[0-3])*")
OWN_HANDLERS = {"null", "console"}
"""Event log handlers that each torch has."""

READ = frozenset({"join_timeout", "last_call_timeout", "is_host", "read_timeout", "store_type"})
"""The keys of ``--rdzv-conf`` that have an effect."""
KEEP_ALIVE = frozenset({"keep_alive_interval", "keep_alive_max_attempt", "heartbeat_timeout"})
UNUSED = frozenset({"close_timeout", "cas_backoff_max_seconds"})
"""With `KEEP_ALIVE` the keys that torch's own rendezvous handler reads, which is not used."""


def check(options: SimpleNamespace, where: Where) -> None:
    """Raise `ConfigError` for the first thing that is wrong. Normalises signals, and the ranks per node to a number.

    Args:
        where: The flag or the variable that set an option.
    """
    for name, rule in _RULES.items():
        if not hasattr(options, name):  # an older torch lacks some options
            continue
        setattr(options, name, parse_with(rule, getattr(options, name), where(name)))
    parse_with(
        _existing(int(options.nproc_per_node)), options.local_ranks_filter, where("local_ranks_filter")
    )
    if not options.standalone:
        _check_rendezvous(options, where)
    elif int(options.nnodes.split(":")[0]) > 1:
        raise ConfigError(f"--standalone is for one node, and {where('nnodes')} is {options.nnodes}")


def _nnodes(value: object) -> str:
    parts = str(value).split(":")
    if not 1 <= len(parts) <= 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError("give a number of nodes, or MIN:MAX")
    if not 1 <= int(parts[0]) <= int(parts[-1]):
        raise ValueError("give at least 1 node, and MIN not above MAX")
    return str(value)


def _nproc_per_node(value: object) -> str:
    text = str(value)
    if text.strip().isdecimal() and int(text) > 0:
        return text.strip()
    import torch
    from torch.distributed.run import determine_local_world_size

    if text not in {"auto", "cpu", "gpu", "xpu", torch._C._get_privateuse1_backend_name()}:
        raise ValueError("give a number of ranks greater than 0, or auto, cpu, gpu or xpu")
    if text == "gpu" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU on this node; give a number, cpu or auto")
    if text == "xpu" and not torch.xpu.is_available():
        raise ValueError("torch finds no XPU on this node; give a number, cpu or auto")
    return str(determine_local_world_size(text))


def _restarts(value: int) -> int:
    if value < 0:
        raise ValueError("give 0 or more")
    return value


def _interval(value: float) -> float:
    # torchrun refuses 0 later, by an assertion without a message.
    if not 0 < value < math.inf:
        raise ValueError("give a number of seconds greater than 0")
    return value


def _shutdown_timeout(value: int | None) -> int | None:
    if value is not None and value < 0:
        raise ValueError("give a number of seconds, 0 or more")
    return value


def _streams(value: str) -> str:
    if not STREAMS.fullmatch(value):
        raise ValueError(
            "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each local rank, like 0:3,1:1"
        )
    return value


def _ranks(value: str) -> str:
    if value and not all(part.strip().isdecimal() for part in value.split(",")):
        raise ValueError("give local ranks, like 0,1,2")
    return value


def _existing(count: int) -> Callable[[object], object]:
    """Ranks that a filter names must exist: torch would show no output, without an error."""

    def rule(value: object) -> object:
        named = [int(part) for part in str(value).split(",")] if value else []
        if named and max(named) >= count:
            has = f"{count} local ranks, 0 to {count - 1}" if count > 1 else "one local rank, 0"
            raise ValueError(f"this node has {has}")
        return value

    return rule


def _signals(value: str) -> str:
    names = [signal_of(part) for part in value.split(",")]
    never = [each.name for each in names if each in (signal.SIGKILL, signal.SIGSTOP)]
    if never:
        raise ValueError(f"no program can catch {never[0]}")
    return ",".join(each.name for each in names)


def _port(value: int | None) -> int | None:
    if value is not None and not 0 <= value < 2**16:
        raise ValueError("give a port from 0 to 65535")
    return value


def _log_dir(value: str | None) -> str | None:
    if value is None or value == os.devnull:  # torch: no logs are kept
        return value
    place = os.path.abspath(value)
    while not os.path.lexists(place):  # what does not exist is made
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise ValueError(f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"this user cannot write to {place}")
    return value


def _logs_specs(value: str | None) -> str | None:
    if value is None:
        return None
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


def elastic_shutdown_timeout(environ: Mapping[str, str]) -> float | None:
    """torch's own variable for ``--shutdown-timeout``, in seconds, or None. Raises `ConfigError`."""
    text = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT: {text!r} is not allowed: give seconds, 0 or more")
    return float(text)


# -- the rendezvous ---------------------------------------------------------------------------------------------


def _rdzv_conf(value: str) -> str:
    """Values that torch would stumble over. Raises `ValueError`."""
    for entry, key, given in _entries(value):
        if not key or not given:
            raise ValueError(f"{entry!r} is not KEY=VALUE")
        if key.endswith(("timeout", "interval", "max_attempt")) and not (
            given.isdecimal() and int(given) > 0
        ):
            raise ValueError(f"{key} has {given!r}; give a whole number greater than 0")
        if key == "is_host" and given.lower() not in SWITCH:
            raise ValueError(f"{key} has {given!r}; give 0 or 1")
        if key == "store_type" and given.lower() != "tcp":
            raise ValueError(f"{key} has {given!r}; give tcp")
    return value


def without_effect(value: str, source: str) -> list[str]:
    """A warning for each key in ``--rdzv-conf`` that has no effect: torchrun ignores a misspelt one silently."""
    found = []
    for _, key, _ in _entries(value):
        if key in KEEP_ALIVE:
            found.append(f"{source}: {key} has no effect: lost nodes are detected by --ft-node-timeout")
        elif key in UNUSED:
            found.append(f"{source}: {key} has no effect: torch's rendezvous handler is not used")
        elif key not in READ:
            near = nearest(key, sorted(READ))
            hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(READ))}"
            found.append(f"{source}: {key} has no effect: there is no such key; {hint}")
    return found


def rdzv_settings(value: str) -> dict[str, str]:
    """The keys and values of ``--rdzv-conf``."""
    return {key: given for _, key, given in _entries(value)}


def _entries(value: str) -> list[tuple[str, str, str]]:
    """Each entry as it was written, its key and its value."""
    found = []
    for entry in value.split(",") if value.strip() else []:
        key, _, given = entry.partition("=")
        found.append((entry.strip(), key.strip(), given.strip()))
    return found


def _check_rendezvous(options: SimpleNamespace, where: Where) -> None:
    """How several nodes are to meet. Raises `ConfigError`. One node needs no id: an empty one is as none."""
    backend, counts = options.rdzv_backend, [int(part) for part in options.nnodes.split(":")]
    least, most = counts[0], counts[-1]
    if backend not in ("static", "c10d"):
        raise ConfigError(
            f"{where('rdzv_backend')}: {backend!r} is not allowed: Holdfast restarts nodes together through a c10d "
            "store; use c10d"
        )
    if options.rdzv_endpoint.strip():
        try:
            parse_endpoint(options.rdzv_endpoint)
        except ValueError as problem:
            raise ConfigError(f"{where('rdzv_endpoint')}: {problem}") from None
    if backend == "c10d" and least > 1 and not options.rdzv_endpoint.strip():
        # torch would have each node wait for the others at a port of its own.
        raise ConfigError(
            f"{where('rdzv_endpoint')}: '' is not allowed: with --nnodes {options.nnodes} give every node the "
            "HOST:PORT of node 0; a variable that it was given by was probably empty"
        )
    options.rdzv_id = _rdzv_id(options.rdzv_id, options.nnodes, most, where)
    if backend == "static" and not 0 <= options.node_rank < most:
        ranks = f"0 to {most - 1}" if most > 1 else "0"
        raise ConfigError(
            f"{where('node_rank')}: {options.node_rank} is not allowed: with --nnodes {options.nnodes} give {ranks}"
        )


def _rdzv_id(value: str, nnodes: str, most: int, where: Where) -> str:
    if value.strip():
        return value
    if most == 1:
        return NO_ID
    raise ConfigError(
        f"{where('rdzv_id')}: {value!r} is not allowed: the variable that it was given by was probably empty; with "
        f"--nnodes {nnodes} give every node the same id"
    )


# -- the training script ----------------------------------------------------------------------------------------


def check_script(script: str | None, *, module: bool, no_python: bool, run_path: bool) -> None:
    """Raise `ConfigError` when `script` cannot be run; the switches are torchrun's."""
    if not script:
        raise ConfigError("no training script: ft_launcher [options] script.py [options of the script]")
    if no_python and module and not run_path:
        raise ConfigError("--no-python and -m/--module exclude each other: a module is run by python")
    if not no_python and not run_path:
        _check_python()
    if no_python and not run_path:
        _check_program(script)
    elif not module or run_path:
        _check_file(script)
    else:
        _check_module(script)


def _check_file(script: str) -> None:
    if not os.path.exists(script):
        place = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise ConfigError(f"there is no training script {script!r}{place}{_similar(script)}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ConfigError(f"the training script {script!r} is a folder without a __main__.py")
    if not os.access(script, os.R_OK):
        raise ConfigError(f"the training script {script!r} cannot be read by this user")


def _check_module(module: str) -> None:
    flags = sys.flags
    if "PYTHON_EXEC" in os.environ or flags.ignore_environment or flags.no_site or flags.no_user_site:
        return  # the ranks' Python may have other paths
    name = module.partition(".")[0]
    sys.path.insert(0, "")  # as `python -m` has it
    try:
        here, found = os.getcwd(), find_spec(name)
    except Exception:  # an odd name, a finder of the user's own, a folder that was removed
        return
    finally:
        sys.path.remove("")
    if found is None:
        raise ConfigError(
            f"there is no module {name!r} to run with -m: neither in {here} nor on the paths of "
            f"{sys.executable}{_similar_module(name)}"
        )


def _check_python() -> None:
    """torch takes the ranks' Python from this variable."""
    python = os.environ.get("PYTHON_EXEC")
    if python is not None and not shutil.which(python):
        raise ConfigError(
            f"PYTHON_EXEC: there is no program {python!r} to run the ranks with; fix or unset it"
        )


def _check_program(program: str) -> None:
    if shutil.which(program):
        return
    if os.path.isfile(program) and os.path.dirname(program):
        raise ConfigError(f"the program {program!r} is not executable: chmod +x {program}")
    raise ConfigError(f"there is no program {program!r} (searched as a shell would, because of --no-python)")


def _similar(script: str) -> str:
    """``; did you mean …`` for the file of the same folder with the most similar name, or nothing."""
    folder, name = os.path.split(script)
    try:
        near = nearest(name, os.listdir(folder or "."))
    except OSError:
        near = None
    return f"; did you mean {os.path.join(folder, near)!r}?" if near else ""


def _similar_module(name: str) -> str:
    """As `_similar`, among what the current folder has to import."""
    try:
        files = [each for each in os.listdir() if each.endswith(".py") or os.path.isdir(each)]
    except OSError:
        files = []
    near = nearest(name, [each.removesuffix(".py") for each in files])
    return f"; did you mean {near!r}?" if near else ""


_RULES: dict[str, Callable[..., object]] = {
    "nnodes": _nnodes,
    "nproc_per_node": _nproc_per_node,
    "max_restarts": _restarts,
    "monitor_interval": _interval,
    "shutdown_timeout": _shutdown_timeout,
    "redirects": _streams,
    "tee": _streams,
    "local_ranks_filter": _ranks,
    "signals_to_handle": _signals,
    "master_port": _port,
    "log_dir": _log_dir,
    "logs_specs": _logs_specs,
    "event_log_handler": _event_log_handler,
    "rdzv_conf": _rdzv_conf,
}
