"""Which torch Holdfast works with, and the one line that names a torch that is too old.

The tested versions are listed in docs/versions.md, which `make matrix` writes. Does not cover: a torch that was built
from source without package metadata and is not imported yet; its version is unknown, and it is not refused.
"""

from __future__ import annotations

import sys

from .fault_tolerance.errors import UnsupportedTorch

OLDEST = (2, 8)
NEWEST = (2, 15)
"""The oldest and the newest torch that `make matrix` runs: major and minor version."""


def require_torch(version: str | None = None) -> None:
    """Raise `UnsupportedTorch` if the installed torch is too old; without any torch nothing happens.

    Args:
        version: Its version, where that is known; "" for none.
    """
    version = installed() if version is None else version
    if version and release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedTorch(
            f"torch {version} is too old: Holdfast needs torch {oldest} or newer. "
            f"Install it with: pip install 'torch>={oldest}'"
        )


def installed() -> str:
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
