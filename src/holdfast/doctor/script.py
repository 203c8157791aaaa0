"""What can be said of one training script: the place for all that `holdfast doctor SCRIPT` says beyond the machine.

Today that is what its imports say, read from its text. Nothing of the user's is run.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from .finding import Finding
from .judgements import script as judgements
from .judgements.script import Imports
from .looks import project
from .looks.imports import search_path
from .looks.lists import Kept


@dataclass(frozen=True, slots=True)
class Script:
    """A script or, with `module`, a module for `python -m`, and its arguments."""

    name: str
    module: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """What is in front of a rank's sys.path."""
        if self.module:
            return os.getcwd()
        return os.path.abspath(self.name if os.path.isdir(self.name) else os.path.dirname(self.name))


def look(script: Script) -> Imports:
    """Where the script's imports come from; sys.path is without this program's own folder."""
    return project.look(script.name, module=script.module, path=search_path(script.folder, sys.path))


def script_findings(script: Script, imports: Imports, kept: Kept) -> list[Finding]:
    """Everything there is to say of this script.

    Called in the main thread, and outside the ceiling of the looks: a trial that takes longer has its place here.
    """
    return [
        judgements.imports(script.name, imports, kept.modules),
        judgements.missing(imports),
        judgements.shadowing(imports),
    ]


def hiding(imports: Imports, kept: Kept) -> list[str]:
    """What beside the script hides a module that a zygote imports: then no rank starts warm."""
    ahead = {*imports.needed, *imports.installed, *kept.packages}
    return sorted(ahead.intersection(imports.shadowing))
