"""What is imported ahead: torch, what the user names, and what rank 0 of this script had imported when it had begun.

Kept from job to job, by script and Python, in a file of the run directory the user chose, else in the state folder.
With it: packages that must not be imported ahead, and why. Entries are ``[name, origin]``.
Does not cover: a list that is out of date; a module that is gone, or found elsewhere, is not imported ahead.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from .zygote.preload import Entry

FORMAT = 1
MOST = 50_000  # modules


@dataclass
class Learned:
    """`modules` as the last job's rank had them (None: not known); `refused` maps a package to the reason."""

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
    """Keep it, whole or not at all. What goes wrong costs the next job's first start, nothing else."""
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
