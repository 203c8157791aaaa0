"""The fields of a ledger's record, as they may be found on disk: missing, or of an unexpected type. Pure.

Does not cover: what they mean (`ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Fields:
    """A record's fields, each of the type that is asked for or its default."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record

    def text(self, name: str) -> str:
        """A string, or an empty one."""
        value = self._record.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """A whole number, or None."""
        value = self._record.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def time(self) -> float:
        """When it was written, unix seconds, or 0."""
        value = self._record.get("t")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        return 0.0

    def truth(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self._record.get(name)
        return value if isinstance(value, bool) else default

    def texts(self, name: str) -> tuple[str, ...]:
        """The strings in a list."""
        value = self._record.get(name)
        return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
