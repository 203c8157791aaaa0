"""Where the modules come from that a script imports, read from its text: nothing of the user's is run.

A rank's search path is the script's folder (with -m the current one) and then this Python's. Modules of the project
are followed; what is installed is taken for whole.
Does not cover: imports with computed names, folders that a program adds to sys.path, and finders of somebody's own
that run code to answer.
"""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder

MOST_FILES = 300
"""Files of a project that are read; the look has to end."""

_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))  # `except*` came with Python 3.11


@dataclass(frozen=True, slots=True)
class Import:
    """One module that a file names."""

    name: str
    """Dotted and absolute."""
    line: int
    sure: bool
    """Whether it is imported whenever the file is, and its want is not caught."""
    perhaps_a_name: bool = False
    """Whether its last part may be a name in a module, and no module: `from package import name`."""


def read(text: bytes, package: str) -> list[Import]:
    """The imports of a file in `package`, empty for a script. Raises SyntaxError or ValueError for other text."""
    return list(_imports(ast.parse(text).body, package, sure=True))


def find(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """The module as an import would find it on this path, with nothing imported. Raises nothing."""
    found: ModuleSpec | None = None
    places: Sequence[str] | None = path
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        if places is None:
            return None
        found = _find_one(".".join(parts[:number]), places, top=number == 1)
        if found is None:
            return None
        places = found.submodule_search_locations
    return found


def search_path(folder: str, inherited: Sequence[str]) -> list[str]:
    """A rank's sys.path: the folder, and what every program of this Python has behind its own."""
    return [folder, *(os.path.abspath(each) for each in inherited)]


def is_installed(spec: ModuleSpec) -> bool:
    """Whether it is Python's or in site-packages: not edited between two restarts."""
    return is_python_s(spec) or _is_below(_place(spec), _packages())


def is_python_s(spec: ModuleSpec) -> bool:
    """Whether it belongs to the standard library."""
    place = _place(spec)
    return not place or (_is_below(place, _library()) and not _is_below(place, _packages()))


def _place(spec: ModuleSpec) -> str:
    """Its file or folder; empty for what is built in."""
    if spec.origin and spec.has_location:
        return os.path.abspath(spec.origin)
    return (
        os.path.abspath(next(iter(spec.submodule_search_locations)))
        if spec.submodule_search_locations
        else ""
    )


def _is_below(place: str, folders: Sequence[str]) -> bool:
    return any(place.startswith(os.path.join(each, "")) for each in folders)


def _find_one(name: str, places: Sequence[str], *, top: bool) -> ModuleSpec | None:
    if top:
        for importer in (BuiltinImporter, FrozenImporter):
            found = importer.find_spec(name)
            if found is not None:
                return found
    found = PathFinder.find_spec(name, places)
    if found is not None or not top:
        return found
    for finder in sys.meta_path:  # those of editable installs
        if finder in (BuiltinImporter, FrozenImporter, PathFinder) or not hasattr(finder, "find_spec"):
            continue
        try:
            found = finder.find_spec(name, None)
        except Exception:  # somebody else's code
            continue
        if found is not None:
            return found
    return None


def _imports(body: Sequence[ast.stmt], package: str, *, sure: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, sure) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, package, sure)
        elif isinstance(node, ast.If):
            if not _for_types_only(node.test):
                yield from _imports(node.body, package, sure=sure and _is_main(node.test))
            yield from _imports(node.orelse, package, sure=False)
        elif isinstance(node, _TRIES):
            caught = sure and not node.handlers
            yield from _imports([*node.body, *node.orelse], package, sure=caught)
            for handler in node.handlers:
                yield from _imports(handler.body, package, sure=False)
            yield from _imports(node.finalbody, package, sure=sure)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                yield from _imports(case.body, package, sure=False)
        else:
            deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While))
            for name in ("body", "orelse"):
                inner = getattr(node, name, None)
                if isinstance(inner, list):
                    yield from _imports(inner, package, sure=sure and not deferred)


def _from(node: ast.ImportFrom, package: str, sure: bool) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        parts = package.split(".") if package else []
        if node.level - 1 >= len(parts):
            return
        above = parts[: len(parts) - node.level + 1]
        base = ".".join([*above, *([base] if base else [])])
    yield Import(base, node.lineno, sure)
    for alias in node.names:
        if alias.name != "*":
            yield Import(f"{base}.{alias.name}", node.lineno, sure, perhaps_a_name=True)


def _for_types_only(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _is_main(test: ast.expr) -> bool:
    """`if __name__ == "__main__":`, which is true of a script."""
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


def _packages() -> list[str]:
    return _folders(tuple(sys.path))[0]


def _library() -> list[str]:
    return _folders(tuple(sys.path))[1]


@cache
def _folders(path: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Where packages are installed, and Python's own library."""
    places = sysconfig.get_paths()
    found = [places["purelib"], places["platlib"], *site.getsitepackages()]
    found += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found += [each for each in path if os.path.basename(each) in ("site-packages", "dist-packages")]
    return list(dict.fromkeys(found)), [places["stdlib"], places["platstdlib"]]
