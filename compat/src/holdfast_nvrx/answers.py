"""Which module of `nvidia_resiliency_ext` is answered by Holdfast, and which by the original.

Always holds:
- `fault_tolerance`, `straggler`, `attribution.straggler` and the documented callbacks are Holdfast's.
- Every other module is the original's, unchanged, where the original is installed.
- Without the original, a module that Holdfast does not offer raises ModuleNotFoundError, which names a replacement.

Does not cover: type checkers, which see the original's modules or none.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec as find_any_spec
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from .names import (
    EXCEPTIONS,
    FILES,
    FILES_WITHOUT_ORIGINAL,
    INSTEAD,
    MEMBERS,
    NAMES,
    PACKAGES_WITHOUT_ORIGINAL,
    STUBS,
)

PACKAGE = "nvidia_resiliency_ext"
VERSION = "0.6.0+holdfast"
"""Without the original. Programs compare it with 0.6.0; the label tells it apart from NVIDIA's."""
FOLDER = os.path.join(os.path.dirname(__file__), "modules")
REPAIR = "pip install --force-reinstall --no-deps holdfast"


def find_original() -> str | None:
    """The folder of the original's package, or None. A folder that an uninstallation left is none."""
    spec = PathFinder.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        if os.path.isfile(os.path.join(place, "fault_tolerance", "__init__.py")):
            return place
    return None


def find_spec(name: str) -> ModuleSpec | None:
    """For `sys.meta_path`. None leaves the name to the other finders, all of them if Holdfast is not installed.

    Raises:
        ModuleNotFoundError: no package offers the module, and it is being imported.
    """
    if find_any_spec("holdfast") is None:
        return None
    module, original = name[len(PACKAGE) + 1 :], find_original()
    if module in NAMES:
        return _spec(name, _Names(*NAMES[module]), original)
    files = FILES if original else FILES | FILES_WITHOUT_ORIGINAL
    if module in files:
        return spec_from_file_location(name, os.path.join(FOLDER, f"{files[module]}.py"))
    if original:
        # A release without this package: it is only the parent of Holdfast's straggler detection.
        lacks_parent = module == "attribution" and not os.path.isdir(os.path.join(original, module))
        return _spec(name, _Loader(), original) if lacks_parent else None
    if not module or module in PACKAGES_WITHOUT_ORIGINAL:
        return _spec(name, _Loader(), None)
    if module in STUBS:
        return _spec(name, _Stubs(STUBS[module]), None)
    if _is_imported() and not name.endswith("__main__"):
        parent, _, last = module.rpartition(".")
        if not last.islower() or parent in _LEAVES:  # `from parent import last`
            raise ModuleNotFoundError(f"{name}: {name.rpartition('.')[0]} of Holdfast has no {last!r}")
        parts = module.split(".")
        prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        why = next(
            (INSTEAD[prefix] for prefix in prefixes if prefix in INSTEAD), "this module; see docs/drop-in.md"
        )
        # The error has no `name`: with it, `from package import module` would hide the text.
        raise ModuleNotFoundError(
            f"{name}: Holdfast answers for {PACKAGE} and does not offer {why}. With nvidia-resiliency-ext installed "
            "beside it, the module is the original's"
        )
    return None


def _is_imported() -> bool:
    """Whether the search is part of an import. `importlib.util.find_spec` asks too, and must get None.

    Python passes this to finders in no other way than by the frames of importlib, which call `Finder.find_spec`.
    """
    search = sys._getframe(3)
    importing = vars(_frozen_importlib)
    caller = search.f_back
    return search.f_globals is importing and caller is not None and caller.f_globals is importing


def _spec(name: str, loader: Any, original: str | None) -> ModuleSpec:
    """A package, so that its submodules are found: ours by this finder, others in the folder of the original."""
    spec = ModuleSpec(name, loader, origin=__file__, is_package=True)
    if original:
        folder = os.path.join(original, *name.split(".")[1:])
        spec.submodule_search_locations = [folder] if os.path.isdir(folder) else []
    return spec


class _Loader:
    """Fills a new module. A submodule of it can be used as an attribute, without being imported before."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        own, name, public = vars(module), module.__name__, self._names
        own["__all__"] = list(public)

        def find(attribute: str) -> Any:
            if attribute in public:
                own[attribute] = self.load(name, attribute)
                return own[attribute]
            if f"{name}.{attribute}".partition(".")[2] in _ALL:
                return import_module(f"{name}.{attribute}")
            if (
                not attribute.startswith("__")
                and (other := _load_original(name))
                and hasattr(other, attribute)
            ):
                own[attribute] = getattr(other, attribute)
                return own[attribute]
            raise AttributeError(f"module {name!r} of Holdfast has no attribute {attribute!r}")

        own["__getattr__"] = find
        own["__dir__"] = lambda: sorted({*own, *public})
        if name == PACKAGE:
            own["__version__"] = VERSION
        elif name == f"{PACKAGE}.fault_tolerance":
            _warn_about_the_command()

    def load(self, module: str, name: str) -> Any:
        """The object of a public name."""
        raise AttributeError(name)


class _Names(_Loader):
    """Names of a module of Holdfast, each imported when it is first used and then kept."""

    def __init__(self, home: str, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self._home = home

    def load(self, module: str, name: str) -> Any:
        return getattr(import_module(self._home), name)


class _Stubs(_Loader):
    """Classes that refuse to be called."""

    def load(self, module: str, name: str) -> Any:
        if name in EXCEPTIONS:
            return _stubs.setdefault(name, type(name, (Exception,), {"__module__": module}))

        def refuse(cls: type, *args: object, **kwargs: object) -> object:
            raise RuntimeError(
                f"{module}.{name}: Holdfast does not offer {INSTEAD['inprocess']}. To use the original's, install "
                "nvidia-resiliency-ext beside it"
            )

        members = {member: f"{name}.{member}" for member in MEMBERS.get(name, ())}
        return _stubs.setdefault(name, type(name, (), {"__module__": module, "__new__": refuse, **members}))


@cache
def _load_original(name: str) -> ModuleType | None:
    """The original's module of this name, for names in it that Holdfast lacks and other modules of the original use.

    None for a package: its import would load everything that Holdfast replaces.
    """
    original = find_original()
    path = os.path.join(original or "", *name.split(".")[1:]) + ".py"
    spec = spec_from_file_location(name, path) if original and os.path.isfile(path) else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:  # it lacks a requirement of its own
        return None
    return module


_stubs: dict[str, type] = {}
"""A class is the same object in each module that has its name."""
_LEAVES = {
    name for name in (*NAMES, *STUBS) if not any(other.startswith(f"{name}.") for other in (*NAMES, *STUBS))
}
_ALL = {*NAMES, *FILES, *FILES_WITHOUT_ORIGINAL, *PACKAGES_WITHOUT_ORIGINAL, *STUBS}


def _warn_about_the_command() -> None:
    """Both distributions own the script `ft_launcher`; removing one of them deletes it."""
    if sys.executable and os.path.exists(os.path.join(os.path.dirname(sys.executable), "ft_launcher")):
        return
    from importlib.metadata import PackageNotFoundError, files

    try:
        scripts = [path.locate() for path in files("holdfast") or () if path.name == "ft_launcher"]
    except PackageNotFoundError:
        return
    if scripts and not any(os.path.exists(str(script)) for script in scripts):
        text = f"the command ft_launcher is gone, as after removing nvidia-resiliency-ext. To repair it: {REPAIR}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def find_distributions() -> Iterator[object]:
    """The metadata of nvidia-resiliency-ext where it is not installed: name and version."""
    from importlib.metadata import Distribution

    class Metadata(Distribution):
        def read_text(self, filename: str) -> str | None:
            text = f"Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: {VERSION}\n"
            return text if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return os.path.join(FOLDER, path)

    if find_original() is None and find_any_spec("holdfast") is not None:
        yield Metadata()


def report() -> list[tuple[str, str]]:
    """For `holdfast doctor`: names, and who answers imports of them."""
    from importlib.metadata import PackageNotFoundError, version

    ours = ", ".join(sorted({name for name in NAMES if "." not in name} | {"attribution.straggler"}))
    original = find_original()
    others = "not installed"
    if original:
        try:
            others = f"nvidia-resiliency-ext {version('nvidia-resiliency-ext')} in {original}"
        except PackageNotFoundError:
            others = f"{original}, whose version is unknown"
    if not any(getattr(finder, "__module__", "") == "holdfast_nvrx_start" for finder in sys.meta_path):
        return [(PACKAGE, f"{others} (HOLDFAST_NVRX=off)")]
    return [(f"{PACKAGE}: {ours}", "Holdfast"), (f"{PACKAGE}: other modules", others)]
