"""Installs the finder for `nvidia_resiliency_ext`. Every Python imports this at its start, so it imports nothing.

HOLDFAST_NVRX=off in the environment leaves all imports to the original.
"""

import os
import sys

PACKAGE = "nvidia_resiliency_ext"


class Finder:
    """The first of `sys.meta_path`. Everything else is imported when the name is first used."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == PACKAGE or name.startswith(PACKAGE + "."):
            from holdfast_nvrx.answers import find_spec

            return find_spec(name)
        return None

    @staticmethod
    def find_distributions(context=None):  # type: ignore[no-untyped-def]
        """For importlib.metadata: the version of the package where the original is not installed."""
        if context is None or not context.name or context.name.lower().replace("-", "_").replace(".", "_") != PACKAGE:
            return iter(())
        from holdfast_nvrx.answers import find_distributions

        return find_distributions()


def install():  # type: ignore[no-untyped-def]
    """Once in this process."""
    if os.environ.get("HOLDFAST_NVRX") != "off" and Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


install()
