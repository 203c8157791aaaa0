"""How a rank's interpreter comes to run the prologue: its folder is in front of the others on PYTHONPATH."""

from __future__ import annotations

import os

PROLOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prologue")


def with_prologue(python_path: str | None) -> str:
    """PYTHONPATH with the prologue's folder in front (the prologue takes it off again)."""
    return os.pathsep.join([PROLOGUE, python_path]) if python_path else PROLOGUE
