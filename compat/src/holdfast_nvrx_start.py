"""Installs the finder for `nvidia_resiliency_ext`. Every Python imports this at its start, so it imports nothing new.

A module of its own, because a package would cost another file and another folder at each start.
HOLDFAST_NVRX=off in the environment leaves all imports to the original.
"""

import os
import sys

PACKAGE = "nvidia_resiliency_ext"


class Finder:
    """The first of `sys.meta_path`. `holdfast_nvrx.answers` is imported when the name is first used."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        """See importlib.abc.MetaPathFinder."""
        if name.partition(".")[0] != PACKAGE:
            return None
        from holdfast_nvrx.answers import find_spec

        return find_spec(name)

    @staticmethod
    def find_distributions(context: object = None) -> object:
        """For importlib.metadata: the version of the package where the original is not installed."""
        name = getattr(context, "name", None) or ""
        if name.lower().replace("-", "_").replace(".", "_") != PACKAGE:
            return ()
        from holdfast_nvrx.answers import find_distributions

        return find_distributions()


def install() -> None:
    """Once in this process."""
    finders: list[object] = sys.meta_path  # type: ignore[assignment]
    if os.environ.get("HOLDFAST_NVRX", "").lower() != "off" and Finder not in finders:
        finders.insert(0, Finder)


install()
