"""Whether ranks of this command line can start warm, and what their zygote is started with. Pure.

A zygote has the very command line of the ranks, and their environment except what differs from rank to rank. When a
rank is started both are compared with the rank's own: where anything else differs, that rank starts cold.
Does not cover: what is found out only by trying (:mod:`.pool`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ranks.prologue_path import flight_recorder
from .zygote.preload import of_a_rank

NOT_TESTED = (
    "this machine has an NVIDIA driver, and warm start has not passed its GPU checks "
    "(to turn it on: --ft-warm-start on)"
)
MACRO = "${local_rank}"  # torch puts the number in its place: every rank has a command line of its own


@dataclass(frozen=True)
class Request:
    """What the command line and the environment ask for, as far as it is known before torch is imported."""

    mode: str  # auto, on or off
    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    numa: bool = False
    virtual_local_rank: bool = False
    several: bool = True  # ranks on this node
    preload: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """How to start the zygote: the ranks' command line, and their environment without what is a rank's own."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None  # which Python puts first on the path, so that a module there hides an installed one


def why_cold(request: Request, environment: Mapping[str, str], *, is_tested: bool) -> str:
    """Why ranks start cold, in words ('' if they may start warm).

    Args:
        is_tested: Whether warm start has passed its checks with the driver of this machine (:mod:`.gpu_evidence`).
    """
    if request.mode == "off":
        return "--ft-warm-start is off"
    if request.no_python or request.run_path:
        return "the ranks are not started as `python SCRIPT`"
    if environment.get("PYTHON_EXEC", sys.executable) != sys.executable:
        return "PYTHON_EXEC names another Python than the launcher's"
    if request.virtual_local_rank:
        return "--virtual-local-rank gives each rank an environment of its own"
    if request.numa:
        return "--numa-binding starts each rank by another program"
    if any(MACRO in word for word in request.args):
        return f"each rank has a command line of its own ({MACRO})"
    if request.mode == "auto" and not is_tested:
        return NOT_TESTED
    return ""


def plan(request: Request, environment: Mapping[str, str]) -> Plan:
    """For a request that may start warm."""
    module = ("-m",) if request.module else ()
    command = (sys.executable, "-u", *module, request.script, *request.args)
    given = {name: value for name, value in environment.items() if not of_a_rank(name)}
    if request.several:
        given.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    given.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does
    given.update(flight_recorder(given))
    return Plan(command, given, _folder(request))


def _folder(request: Request) -> str | None:
    if getattr(sys.flags, "safe_path", False):
        return None
    if request.module:
        return os.getcwd()
    script = os.path.realpath(request.script)
    return script if os.path.isdir(script) else os.path.dirname(script)


def unlike(zygote: Mapping[str, str], rank: Mapping[str, str]) -> list[str]:
    """Variables, those of a rank aside, in which the two differ: a library may have read them when it was imported."""
    names = {name for name in (*zygote, *rank) if not of_a_rank(name)}
    return sorted(name for name in names if zygote.get(name) != rank.get(name))


def hidden(imported: Sequence[str], in_folder: Mapping[str, bool]) -> list[str]:
    """Which of the imported packages a rank would take from the script's folder instead.

    `in_folder` has its entries; true for a package, that is a folder with an ``__init__``.
    """
    there = {name.partition(".")[0] for name, package in in_folder.items() if package or _is_module(name)}
    return sorted(there.intersection(imported))


def _is_module(name: str) -> bool:
    return name.endswith((".py", ".pyc", ".so"))
