"""Whether ranks of this command line can start warm, what their zygote is started with, and what it imports.

A zygote has the very command line of the ranks, and their environment except what differs from rank to rank. When a
rank is started both are compared with the rank's own: where anything else differs, that rank starts cold.

It imports torch at first, and what rank 0 had imported when it had begun to train. That list is kept from job to job,
by script and Python, in a file of the run directory the user chose, else in the state folder. With it: modules that
must not be imported ahead, and why. Entries are ``[name, origin]``.
Does not cover: what is found out only by trying (:mod:`.pool`). A list that is out of date; a module that is gone, or
found elsewhere, is not imported ahead. A script that imports torch by other means than ``import`` statements; in its
first job the ranks do so themselves.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import signal
import stat
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.journal.run_dir import state_folder
from holdfast.private_file import write_file

from ...errors import ConfigError
from ..ranks.rank_environment import flight_recorder
from .zygote.preload import Entry, of_a_rank

NOT_TESTED = (
    "this machine has an NVIDIA driver, and warm start has not passed its GPU checks "
    "(to turn it on: --ft-warm-start on)"
)
MACRO = "${local_rank}"  # torch puts the number in its place: every rank has a command line of its own
# The names of other signals are checked later, with the other options.
CATCHABLE = signal.Signals.__members__.keys() - {"SIGKILL", "SIGSTOP"}
FORMAT = 1
MOST = 50_000  # modules
TORCH: tuple[Entry, ...] = (("torch", None), ("torch.distributed", None))
DYNAMO: tuple[Entry, ...] = (("torch._dynamo", None),)
WITHOUT_TORCH = {"holdfast", "holdfast.fault_tolerance"}
"""Packages that do not import torch, in addition to the standard library."""
NAMES_DYNAMO = re.compile(rb"\b(optim|use_deterministic_algorithms)\b")
"""Parts of torch whose first use imports torch._dynamo: a second in each rank, after the script has begun."""


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
    """How to start the zygote, and what to import in a script's first job."""

    command: tuple[str, ...]  # of the ranks
    environment: Mapping[str, str]  # of the ranks, without what is a rank's own
    folder: str | None  # which Python puts first on the path, so that a module there hides an installed one
    first: tuple[Entry, ...]  # imported while the script's own list is not known
    preload: tuple[str, ...]  # modules that are imported always
    signals: tuple[int, ...]  # which the training handles


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
    first = TORCH if request.module else first_list(script_text(request.script))
    signals = tuple(signal.Signals[name] for name in request.signals if name in CATCHABLE)
    return Plan(command, given, _folder(request), first, request.preload, signals)


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


def hidden(imported: Sequence[str], folder: str | None) -> list[str]:
    """Which of the imported packages a rank would take from the script's folder instead. Raises OSError."""
    there = set()
    for entry in os.scandir(folder) if folder is not None else ():
        is_package = entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py"))
        if is_package or entry.name.endswith((".py", ".pyc", ".so")):
            there.add(entry.name.partition(".")[0])
    return sorted(there.intersection(imported))


# -- the list of modules -----------------------------------------------------------------------------------------


def script_text(script: str) -> bytes:
    """The text of a script; of a folder, a pipe or an unreadable file one that needs torch. A pipe is not read: the
    rank reads it."""
    try:
        if os.path.isfile(script):
            with open(script, "rb") as file:
                return file.read()
    except OSError:
        pass
    return b"import torch"


def first_list(source: bytes) -> tuple[Entry, ...]:
    """What to import for a script with this text: torch, unless it imports only what needs none, and torch._dynamo
    where it names an optimizer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return TORCH
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    if all(name.partition(".")[0] in sys.stdlib_module_names or name in WITHOUT_TORCH for name in names):
        return ()
    return (*TORCH, *DYNAMO) if NAMES_DYNAMO.search(source) else TORCH


@dataclass
class Learned:
    """`modules` as the last job's rank had them (None: not known); `refused` maps a module to the reason."""

    modules: list[Entry] | None = None
    refused: dict[str, str] = field(default_factory=dict)


def list_path(run_dir: str | None, script: str, *, module: bool) -> str:
    """Where the list of this script and Python is kept: in the run directory that the user chose, else in the state
    folder; '' where there is none."""
    try:
        folder = run_dir or state_folder()
    except ConfigError:
        return ""
    what = script if module else os.path.realpath(script)
    key = "\0".join([str(module), what, sys.executable, sys.version])
    return os.path.join(folder, "preload", f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")


def read_list(file: str) -> Learned:
    """The kept list; an empty one where there is none, or it is not ours, or not readable."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as opened:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                return Learned()
            content = json.load(opened)
        if content["format"] != FORMAT:
            return Learned()
        refused = {str(name): str(why) for name, why in content["refused"].items()}
        modules = content["modules"]
        return Learned(None if modules is None else checked_list(modules), refused)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Learned()


def checked_list(found: object) -> list[Entry]:
    """Modules as a rank has written them. Raises ValueError when they are not."""
    if not isinstance(found, list) or len(found) > MOST:
        raise ValueError("no list of modules")
    for entry in found:
        name, origin = entry
        if not isinstance(name, str) or not (origin is None or isinstance(origin, str)):
            raise ValueError(f"no module: {entry!r}")
    return [tuple(entry) for entry in found]


def write_list(file: str, learned: Learned) -> None:
    """Keep it, whole or not at all. An error costs the next job's first start, nothing else."""
    modules = None if learned.modules is None else [list(each) for each in learned.modules]
    content = {"format": FORMAT, "modules": modules, "refused": learned.refused}
    folder, name = os.path.split(file)
    with suppress(OSError):
        with suppress(FileExistsError):  # its own folder has passed the checks of run directories
            os.mkdir(folder, 0o700)
        write_file(os.path.realpath(folder), name, json.dumps(content))
