"""Loads Lightning in half of the time: without what its metrics would load for themselves.

torchmetrics loads matplotlib, scipy and transformers where they are installed, for metrics and plots that no program
here has. Every start of a rank loads Lightning, and some tests start a dozen. Afterwards all of them can be imported
as ever; torchmetrics alone continues without.

    python -X importtime -c 'import lightning.pytorch'

Does not cover: the examples, which run as users run them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.abc import MetaPathFinder
from typing import Any

EXTRAS = frozenset({"matplotlib", "scipy", "transformers"})


class _Absent(MetaPathFinder):
    """Finds none of them, even where another finder would."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"no {fullname} while Lightning is loaded", name=fullname)


@contextmanager
def without_extras() -> Iterator[None]:
    """What is imported meanwhile sees none of them. And no garbage is collected: modules are none, but many objects."""
    version, absent = metadata.version, _Absent()

    def installed(name: str) -> str:
        if name in EXTRAS:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    gc.disable()
    metadata.version = installed  # type: ignore[assignment]
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)
        metadata.version = version
        gc.enable()
