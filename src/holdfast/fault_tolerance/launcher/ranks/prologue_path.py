"""How a rank's interpreter comes to run the prologue: its folder is in front of the others on PYTHONPATH."""

from __future__ import annotations

import os
import sys
import sysconfig

PROLOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prologue")


def with_prologue(python_path: str | None) -> str:
    """PYTHONPATH with the prologue's folder in front (the prologue takes it off again)."""
    return os.pathsep.join([PROLOGUE, python_path]) if python_path else PROLOGUE


def hides_the_prologue() -> str:
    """A folder from which this Python takes a sitecustomize of the site's own before it looks at PYTHONPATH, because a
    ``.pth`` file puts it there; '' where the prologue comes first."""
    given = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for entry in sys.path[not getattr(sys.flags, "safe_path", False) :]:
        if entry in libraries or entry.endswith(".zip"):
            break
        own = os.path.join(entry, "sitecustomize")
        if os.path.abspath(entry) not in given and (os.path.exists(f"{own}.py") or os.path.isdir(own)):
            return entry
    return ""
