"""Installs the finder for `nvidia_resiliency_ext`. Every Python imports this at its start, so it imports nothing.

HOLDFAST_NVRX=off in the environment leaves all imports to the original.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "nvidia_resiliency_ext"


class Finder:
    """The first of `sys.meta_path`. Everything else is imported when the name is first used."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            from holdfast_nvrx.answers import find_spec

            return find_spec(name)
        return None

    @staticmethod
    def find_distributions(context: Any = None) -> Any:
        """For importlib.metadata: the version of the package where the original is not installed."""
        name = context.name if context is not None else None
        if name is None or name.lower().replace("-", "_").replace(".", "_") != PACKAGE:
            return ()
        from holdfast_nvrx.answers import find_distributions

        return find_distributions()


def install() -> None:
    """Once in this process."""
    if os.environ.get("HOLDFAST_NVRX") != "off" and Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


install()
