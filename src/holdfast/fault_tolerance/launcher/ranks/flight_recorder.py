"""Torch's flight recorder is on in every rank, so that an incident can show in which collective each rank is.

Recent torch has it on by itself, with as many entries. Does not cover: reading it (`prologue/testimony.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE, OLDER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
ENTRIES = "2000"


def flight_recorder(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to this environment: nothing where the user has said anything of it, by whichever name."""
    return {} if VARIABLE in environment or OLDER in environment else {VARIABLE: ENTRIES}
