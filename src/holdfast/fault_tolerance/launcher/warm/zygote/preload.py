"""Importing ahead: the modules of a list, as far as they are installed and found where the ranks found them.

Entries are ``[name, origin]``, in the order in which a rank had them; an origin of null is not compared. A module that
is not there, or cannot be imported, is left to the ranks: it is they whom its error concerns.
Does not cover: modules that import differently when the script is already running.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence

Entry = Sequence["str | None"]
ALWAYS_THERE = {"built-in", "frozen"}


def roots() -> tuple[str, ...]:
    """The folders in which modules are installed, and not edited: of the standard library and of packages."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    both = {form for path in found for form in (os.path.abspath(path), os.path.realpath(path))}
    return tuple(sorted(os.path.join(path, "") for path in both))


def wanted(entries: Iterable[Entry], without: frozenset[str], installed: tuple[str, ...]) -> list[Entry]:
    """Those that are installed, and of no package in `without`."""
    return [
        entry
        for entry in entries
        if entry[0]
        and entry[0].partition(".")[0] not in without
        and not entry[0].startswith("__")
        and (entry[1] is None or entry[1] in ALWAYS_THERE or entry[1].startswith(installed))
    ]


def load(
    entries: Sequence[Entry], before: Callable[[str], None], after: Callable[[str], None]
) -> dict[str, str]:
    """Import them; `before` and `after` are told the name of each that is not there yet. Returns what could not be
    imported, and why."""
    origins: dict[str | None, str | None] = dict(entries)  # type: ignore[arg-type]
    failed: dict[str, str] = {}
    for name in origins:
        assert name is not None
        package = name.partition(".")[0]
        if name in sys.modules or not _is_the_same(package, origins.get(package)):
            continue
        before(name)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            failed[name] = repr(error)[:200]  # the ranks will see for themselves
            continue
        after(name)
    return failed


def _is_the_same(name: str, origin: str | None) -> bool:
    """Whether this package would be found where the rank found it; its modules are found where it says."""
    if origin is None or name in sys.modules:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == origin
