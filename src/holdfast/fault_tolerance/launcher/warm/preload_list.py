"""What is imported ahead of a script: torch at first, and what rank 0 had imported when it had begun to train.

The list is kept from job to job, by script and Python, in a file of the run directory the user chose, else in the state
folder. With it: modules that must not be imported ahead, and why. Entries are ``[name, origin]``.
Does not cover: a list that is out of date; a module that is gone, or found elsewhere, is not imported ahead. A script
that imports torch by other means than ``import`` statements; in its first job the ranks do so themselves.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import stat
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, field

from .zygote.preload import Entry

FORMAT = 1
MOST = 50_000  # modules
TORCH: tuple[Entry, ...] = (("torch", None), ("torch.distributed", None))
DYNAMO: tuple[Entry, ...] = (("torch._dynamo", None),)
WITHOUT_TORCH = {"holdfast", "holdfast.fault_tolerance"}
"""Packages that do not import torch, in addition to the standard library."""
NAMES_DYNAMO = re.compile(rb"\b(optim|use_deterministic_algorithms)\b")
"""Parts of torch whose first use imports torch._dynamo: a second in each rank, after the script has begun."""


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


def path(folder: str, script: str, *, module: bool) -> str:
    """Where the list of this script and Python is kept."""
    what = script if module else os.path.realpath(script)
    key = "\0".join([str(module), what, sys.executable, sys.version])
    return os.path.join(folder, "preload", f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json")


def read(file: str) -> Learned:
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
        return Learned(None if modules is None else entries(modules), refused)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Learned()


def entries(found: object) -> list[Entry]:
    """Modules as a rank has written them. Raises ValueError when they are not."""
    if not isinstance(found, list) or len(found) > MOST:
        raise ValueError("no list of modules")
    for entry in found:
        name, origin = entry
        if not isinstance(name, str) or not (origin is None or isinstance(origin, str)):
            raise ValueError(f"no module: {entry!r}")
    return [tuple(entry) for entry in found]


def write(file: str, learned: Learned) -> None:
    """Keep it, whole or not at all. An error costs the next job's first start, nothing else."""
    modules = None if learned.modules is None else [list(each) for each in learned.modules]
    content = {"format": FORMAT, "modules": modules, "refused": learned.refused}
    new = f"{file}.{os.getpid()}.new"
    with suppress(OSError):
        with suppress(FileExistsError):  # its own folder has passed the checks of run directories
            os.mkdir(os.path.dirname(file), 0o700)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as opened:
            json.dump(content, opened)
        os.replace(new, file)
        return
    with suppress(OSError):  # half-written, on a full disk
        os.unlink(new)
