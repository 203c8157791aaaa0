"""Public names that a package loads when they are first asked for, so that importing the package costs next to nothing.

Source: module ``__getattr__`` and ``__dir__``, PEP 562. Does not cover: type checkers; they need the imports under
``TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
            from .torch_version import require_torch  # its error's package uses this module

            require_torch()
        own[name] = getattr(import_module(f".{home[name]}", package), name)
        return own[name]

    def listed() -> list[str]:
        return sorted({*own, *home})

    return load, listed
