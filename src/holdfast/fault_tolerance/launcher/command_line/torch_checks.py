"""Checks of torchrun's options that torch makes late, by assertion or not at all; here each is one line, in time.

What always holds: after `check` nothing about the command line can fail any more that could have been known from
the command line, the environment and the files on this node.

Does not cover: the options of the rendezvous (`rendezvous_options`), and what ranks make of the script.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
from collections.abc import Callable, Mapping

from ...config import parse_with
from ...config_fields import signal_of
from ...errors import ConfigError
from .rendezvous_options import check_rendezvous, rdzv_conf

__all__ = ["check"]

Where = Callable[[str], str]


def check(options: argparse.Namespace, where: Where) -> None:
    """Raise `ConfigError` for the first thing that is wrong; `where` says who set an option. Normalises signals."""
    for name, rule in _RULES.items():
        if not hasattr(options, name):  # an older torch lacks some options
            continue
        setattr(options, name, parse_with(rule, getattr(options, name), where(name)))
    parse_with(_existing(options.nproc_per_node), options.local_ranks_filter, where("local_ranks_filter"))
    if not options.standalone:
        check_rendezvous(options, where)
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
    import torch

    text = str(value)
    words = {"auto", "cpu", "gpu", "xpu", torch._C._get_privateuse1_backend_name()}
    if text not in words and not (text.strip().isdecimal() and int(text) > 0):
        raise ValueError("give a number of ranks greater than 0, or auto, cpu, gpu or xpu")
    if text == "gpu" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU on this node; give a number, cpu or auto")
    if text == "xpu" and not torch.xpu.is_available():
        raise ValueError("torch finds no XPU on this node; give a number, cpu or auto")
    return text


def _restarts(value: int) -> int:
    if value < 0:
        raise ValueError("give 0 or more")
    return value


def _interval(value: float) -> float:
    # torch takes 0 only until its agent is made, which then fails by an assertion without words.
    if not 0 < value < math.inf:
        raise ValueError("give a number of seconds greater than 0")
    return value


def _shutdown_timeout(value: int | None) -> int | None:
    if value is not None and value < 0:
        raise ValueError("give a number of seconds, 0 or more")
    return value


def _streams(value: str) -> str:
    from torch.distributed.elastic.multiprocessing import Std

    try:
        Std.from_str(value)
    except ValueError:
        raise ValueError(
            "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each local rank, like 0:3,1:1"
        ) from None
    return value


def _ranks(value: str) -> str:
    if value and not all(part.strip().isdecimal() for part in value.split(",")):
        raise ValueError("give local ranks, like 0,1,2")
    return value


def _existing(nproc_per_node: str) -> Callable[[object], object]:
    """Ranks that a filter names must exist: torch would show nothing, without a word."""

    def rule(value: object) -> object:
        from torch.distributed.run import determine_local_world_size

        named = [int(part) for part in str(value).split(",")] if value else []
        if named and max(named) >= (count := determine_local_world_size(nproc_per_node)):
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
    from torch.distributed.elastic.events import handlers

    try:
        handlers.get_logging_handler(value)
    except KeyError:
        raise ValueError(f"give one of {', '.join(sorted(handlers._log_handlers))}") from None
    return value


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
    "rdzv_conf": rdzv_conf,
}


def elastic_shutdown_timeout(environ: Mapping[str, str]) -> float | None:
    """torch's own variable for ``--shutdown-timeout``, in seconds, or None. Raises `ConfigError`."""
    text = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT: {text!r} is not allowed: give seconds, 0 or more")
    return float(text)
