"""Importing ahead: the modules of a list, as far as they are installed and found where the ranks found them.

Entries are ``[name, origin]``, in the order in which a rank had them; an origin of null is not compared. A module that
is missing, or cannot be imported, is left to the ranks: its error concerns them. What is printed meanwhile is kept for
them as well.
Also used by the launcher. Does not cover: modules that import differently when the script is already running; in which
order what went to standard output and to standard error was written.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

Entry = Sequence["str | None"]
WITHOUT_FILE = {"built-in", "frozen"}
STREAMS = (1, 2)
HOLDFAST = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))


# Each rank has these for itself, from torchrun's command line or from Holdfast, and a zygote has none of them.
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
    | {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}
)
RANK_PREFIXES = ("TORCHELASTIC_", "FT_", "HOLDFAST_")


def of_a_rank(name: str) -> bool:
    """Whether each rank has this variable of the environment for itself."""
    return name in RANK_VARIABLES or name.startswith(RANK_PREFIXES)


def roots() -> tuple[str, ...]:
    """The folders in which modules are installed, and not edited: of the standard library, of packages, and Holdfast's
    own (an editable installation has it elsewhere)."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages(), HOLDFAST]
    both = {form for path in found for form in (os.path.abspath(path), os.path.realpath(path))}
    return tuple(sorted(os.path.join(path, "") for path in both))


def is_below(name: str, names: Collection[str]) -> bool:
    """Whether the module is one of these, or within one that is a package."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in names for end in range(1, len(parts) + 1))


def wanted(entries: Iterable[Entry], without: Collection[str], installed: tuple[str, ...]) -> list[Entry]:
    """Those that are installed, and not below a name in `without`."""
    return [
        entry
        for entry in entries
        if entry[0]
        and not is_below(entry[0], without)
        and not entry[0].startswith("__")
        and (entry[1] is None or entry[1] in WITHOUT_FILE or entry[1].startswith(installed))
    ]


def missing(entries: Sequence[Entry], failed: Collection[str]) -> Iterator[str]:
    """The names that are not imported yet when their turn comes, and are found where the rank found them; what is
    below a name in `failed` is left out. A package comes before what is within it: so that a name is to blame for all
    that its import does."""
    origins = {str(name): origin for name, origin in entries}
    for name in origins:
        parts = name.split(".")
        if name in sys.modules or is_below(name, failed):
            continue
        if not _is_the_same(parts[0], origins.get(parts[0])):
            continue
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part not in sys.modules and not is_below(part, failed):
                yield part


def _is_the_same(name: str, origin: str | None) -> bool:
    """Whether this package would be found where the rank found it; its modules are found where it says."""
    if origin is None or name in sys.modules:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == origin


def load(name: str) -> str:
    """Import the module; returns why that is impossible ('' if it is imported)."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        return repr(error)[:200]
    return ""


class Output:
    """What modules print while they are imported here, by descriptor; every rank prints it again."""

    def __init__(self) -> None:
        self.text = dict.fromkeys(STREAMS, b"")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, it goes to a file in memory. A stream that is closed stays so."""
        saved, files = {}, {}
        for stream in STREAMS:
            try:
                saved[stream] = os.dup(stream)
            except OSError:
                continue
            files[stream] = os.memfd_create("output")
            os.dup2(files[stream], stream)
        yield  # after an error this process ends
        for each in (sys.stdout, sys.stderr):
            if each is not None:
                each.flush()
        for stream, file in files.items():
            self.text[stream] += os.pread(file, os.fstat(file).st_size, 0)
            os.dup2(saved[stream], stream)
            os.close(saved[stream])
            os.close(file)

    def repeat(self) -> None:
        """Print it, in a rank, to where the rank's output goes."""
        for stream, text in self.text.items():
            while text:
                text = text[os.write(stream, text) :]
