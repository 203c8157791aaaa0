"""The environment of every rank: the prologue's folder in front of the others on PYTHONPATH, and the flight recorder.

Torch's flight recorder is on in every rank, so that an incident can show in which collective each rank is. Recent torch
turns it on by itself, with as many entries. Does not cover: reading it (`prologue/introspection.py`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping

VARIABLE, OLDER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
ENTRIES = "2000"
PROLOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prologue")


def with_prologue(python_path: str | None) -> str:
    """PYTHONPATH with the prologue's folder in front (the prologue takes it off again)."""
    return os.pathsep.join([PROLOGUE, python_path]) if python_path else PROLOGUE


def hides_the_prologue() -> str:
    """A folder from which this Python takes a sitecustomize of the site's own before it reads PYTHONPATH, because a
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


def flight_recorder(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to this environment: nothing where the user has set it, by either name."""
    return {} if VARIABLE in environment or OLDER in environment else {VARIABLE: ENTRIES}
