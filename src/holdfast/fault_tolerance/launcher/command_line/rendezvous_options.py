"""Checks of the options by which nodes find each other: ``--rdzv-…`` and ``--node-rank``.

What always holds: what torch would only find out while it connects, is said before anything starts; a key of
``--rdzv-conf`` that nobody reads is a warning, as torch takes any.

Does not cover: whether the endpoint is reachable. Its name may resolve later, so nothing is looked up here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ...config_fields import nearest
from ...errors import ConfigError

__all__ = ["NO_ID", "READ", "REPLACED", "check_rendezvous", "rdzv_conf", "without_effect"]

NO_ID = "none"  # torchrun's default for --rdzv-id
SWITCH = {"1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"}  # as torch's get_as_bool has it
STORES = {"tcp", "file"}

READ = frozenset(
    {
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "is_host",
        "read_timeout",
        "store_type",
        "cas_backoff_max_seconds",  # new in torch 2.15
    }
)
"""What torch's c10d rendezvous reads from ``--rdzv-conf`` and the launcher leaves to it."""

REPLACED = frozenset({"keep_alive_interval", "keep_alive_max_attempt"})
"""What torch would read, too; the launcher switches torch's keep-alive off."""


def rdzv_conf(value: str) -> str:
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
        if key == "store_type" and given.lower() not in STORES:
            raise ValueError(f"{key} has {given!r}; give tcp")
    return value


def without_effect(value: str, source: str) -> list[str]:
    """A warning for each key in ``--rdzv-conf`` that nobody reads: torchrun passes over a misspelt one in silence."""
    found = []
    for _, key, _ in _entries(value):
        if key in REPLACED:
            found.append(f"{source}: {key} has no effect: lost nodes are noticed by --ft-node-timeout")
        elif key not in READ:
            near = nearest(key, sorted(READ))
            hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(READ))}"
            found.append(f"{source}: {key} has no effect: torch's rendezvous has no such key; {hint}")
    return found


def _entries(value: str) -> list[tuple[str, str, str]]:
    """Each entry as it stands, its key and its value."""
    found = []
    for entry in value.split(",") if value.strip() else []:
        key, _, given = entry.partition("=")
        found.append((entry.strip(), key.strip(), given.strip()))
    return found


def check_rendezvous(options: argparse.Namespace, where: Callable[[str], str]) -> None:
    """How several nodes are to meet. Raises `ConfigError`. One node needs no id: an empty one is as none."""
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    backend, counts = options.rdzv_backend, [int(part) for part in options.nnodes.split(":")]
    least, most = counts[0], counts[-1]
    if backend not in ("static", "c10d"):
        raise ConfigError(
            f"{where('rdzv_backend')}: {backend!r} is not allowed: Holdfast restarts nodes together through a c10d "
            "store; use c10d"
        )
    try:
        parse_rendezvous_endpoint(options.rdzv_endpoint, default_port=0)
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


def _rdzv_id(value: str, nnodes: str, most: int, where: Callable[[str], str]) -> str:
    if value.strip():
        return value
    if most == 1:
        return NO_ID
    raise ConfigError(
        f"{where('rdzv_id')}: {value!r} is not allowed: the variable that it was given by was probably empty; with "
        f"--nnodes {nnodes} give every node the same id"
    )
