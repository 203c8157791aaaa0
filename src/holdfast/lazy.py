"""Public names that a package loads when they are first asked for, so that importing the package costs next to nothing;
and the one line that names a torch which is too old for them.

The tested versions of torch are listed in docs/versions.md, which `make matrix` writes.
Source: module ``__getattr__`` and ``__dir__``, PEP 562. Does not cover: type checkers; they need the imports under
``TYPE_CHECKING``. A torch that was built from source without package metadata and is not imported yet; its version is
unknown, and it is not refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

OLDEST_TORCH = (2, 8)
NEWEST_TORCH = (2, 15)
"""The oldest and the newest torch that `make matrix` runs: major and minor version."""


def names(
    package: str, home: Mapping[str, str], *, needs_torch: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__``; `home` says which of its modules defines a name
    (with a dot before it: a module next to the package).

    Args:
        needs_torch: a name cannot be loaded where torch is too old: `UnsupportedTorch` is raised instead.
    """
    own = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs_torch:
            require_torch()
        own[name] = getattr(import_module(f".{home[name]}", package), name)
        return own[name]

    def listed() -> list[str]:
        return sorted({*own, *home})

    return load, listed


# -- torch ----------------------------------------------------------------------------------------------------


def require_torch(version: str | None = None) -> None:
    """Raise `UnsupportedTorch` if the installed torch is too old; without any torch nothing happens.

    Args:
        version: Its version, where that is known; "" for none.
    """
    version = torch_version() if version is None else version
    if version and release(version) < OLDEST_TORCH:
        from .fault_tolerance.errors import UnsupportedTorch  # its package uses this module

        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedTorch(
            f"torch {version} is too old: Holdfast needs torch {oldest} or newer. "
            f"Install it with: pip install 'torch>={oldest}'"
        )


def torch_version() -> str:
    """The version of the torch of this environment; empty without one. Does not import torch."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", ""))
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def release(version: str) -> tuple[int, ...]:
    """Its first two numbers: (2, 13) of ``2.13.0+cpu``. A part without a number counts as 0."""
    parts = [*version.split("+")[0].split("."), "0", "0"][:2]
    return tuple(int("".join(sign for sign in part if sign.isdecimal()) or 0) for part in parts)
