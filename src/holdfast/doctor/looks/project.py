"""A script and the project's modules that it imports: where everything comes from, read and never run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, all_suffixes

from ..judgements.script import Imports
from .imports import MOST_FILES, Import, find, is_installed, is_python_s, read

TORCH = ("torch", "numpy")


def look(script: str, *, module: bool, path: Sequence[str]) -> Imports:
    """What there is to say of the imports of this script, with `path` as a rank's sys.path."""
    reading = _Reading(path)
    reading.follow(script, module=module)
    files = _standing_before(path)
    used = {name for name in sys.modules if name in sys.stdlib_module_names}
    return Imports(
        installed=sorted(reading.installed),
        project=sorted(reading.project),
        missing=reading.missing,
        perhaps_missing={name: at for name, at in reading.perhaps.items() if name not in reading.missing},
        shadowing=files,
        needed=sorted(name for name in files if name in TORCH or name in used),
        unread=reading.unread,
        cut=reading.cut,
    )


class _Reading:
    """Follows imports from one file to the next, each once."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path
        self._seen: set[str] = set()
        self._todo: list[tuple[str, str, bool]] = []  # file, its package, whether it is imported for sure
        self._known: dict[str, ModuleSpec | None] = {}
        self.installed: set[str] = set()
        self.project: set[str] = set()
        self.missing: dict[str, str] = {}
        self.perhaps: dict[str, str] = {}
        self.unread: dict[str, str] = {}
        self.cut = False

    def follow(self, script: str, *, module: bool) -> None:
        """Read the script and what it leads to."""
        if module:
            self._start_module(script)
        else:
            self._add(os.path.join(script, "__main__.py") if os.path.isdir(script) else script, "", sure=True)
        while self._todo:
            if len(self._seen) > MOST_FILES:
                self.cut = True
                return
            self._read(*self._todo.pop(0))

    def _start_module(self, name: str) -> None:
        found = self._find(name)
        if found is not None and found.submodule_search_locations is not None:
            name += ".__main__"
        self._module(Import(name, 0, True), "-m")

    def _read(self, file: str, package: str, sure: bool) -> None:
        try:
            with open(file, "rb") as opened:
                named = read(opened.read(), package)
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            self.unread[file + line] = (
                getattr(error, "msg", None) or getattr(error, "strerror", None) or str(error)
            )
            return
        for each in named:
            self._module(replace(each, sure=each.sure and sure), f"{os.path.relpath(file)}:{each.line}")

    def _module(self, wanted: Import, where: str) -> None:
        top = wanted.name.partition(".")[0]
        if not top:
            return
        found = self._find(top)
        if found is None:
            if top not in sys.stdlib_module_names:  # else it is one of another system's Python
                (self.missing if wanted.sure else self.perhaps).setdefault(top, where)
        elif is_installed(found):
            if not is_python_s(found):
                self.installed.add(top)
        else:
            self.project.add(top)
            self._follow_project(wanted, where)

    def _follow_project(self, wanted: Import, where: str) -> None:
        parts = wanted.name.split(".")
        for number in range(1, len(parts) + 1):
            name = ".".join(parts[:number])
            found = self._find(name)
            if found is None:
                if wanted.sure and not (wanted.perhaps_a_name and number == len(parts)):
                    self.missing.setdefault(name, where)
                return
            if found.origin and found.has_location and found.origin.endswith(".py"):
                package = name if found.submodule_search_locations is not None else name.rpartition(".")[0]
                self._add(found.origin, package, sure=wanted.sure)

    def _add(self, file: str, package: str, *, sure: bool) -> None:
        if file not in self._seen:
            self._seen.add(file)
            self._todo.append((file, package, sure))

    def _find(self, name: str) -> ModuleSpec | None:
        if name not in self._known:
            self._known[name] = find(name, self._path)
        return self._known[name]


def _standing_before(path: Sequence[str]) -> dict[str, str]:
    """Name -> file of what is in the first folder and hides an installed module, or one of Python's."""
    folder, rest = path[0], [each for each in path[1:] if each != path[0]]
    found = {}
    for name, file in _modules_in(folder):
        here, behind = find(name, [folder]), find(name, rest)
        if here is None or not here.has_location or behind is None or not is_installed(behind):
            continue
        if is_installed(here) or os.path.dirname(file) != folder:
            continue
        if behind.origin is None and behind.submodule_search_locations is not None and is_python_s(behind):
            continue
        found[name] = file
    return found


def _modules_in(folder: str) -> Iterator[tuple[str, str]]:
    """(name, file or folder) of every module that an import would find there; bare folders hide nothing."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return
    for entry in entries:
        path = os.path.join(folder, entry)
        name = entry.partition(".")[0]
        if not name.isidentifier():
            continue
        if any(entry == name + suffix for suffix in all_suffixes()) or os.path.exists(
            os.path.join(path, "__init__.py")
        ):
            yield name, path
