"""The arguments that fault-tolerance callbacks share: what is allowed, and what people are told otherwise.

What always holds: a wrong value is an error where the callback is made, before anything runs. Does not cover: simulated
faults (`simulated_fault.parse_params`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def flag(name: str, value: Any) -> bool:
    """Any text would count as true, "no" as well. Raises ValueError."""
    if value not in (True, False):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def folder(value: Any) -> str | Path | None:
    """The `exp_dir`. Raises ValueError."""
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"exp_dir must be a folder's path or None, not {value!r}")
    return value if value is None or isinstance(value, str) else Path(value)


def policy(value: Any) -> Any:
    """The `exc_handling_policy`. Raises ValueError."""
    if value is not None and not callable(value):
        raise ValueError(f"exc_handling_policy must be a function of the exception or None, not {value!r}")
    return value
