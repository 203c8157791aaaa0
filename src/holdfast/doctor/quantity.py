"""Amounts in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def size(number: float) -> str:
    """Bytes, as people say them: `1.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} bytes"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """`3 days`, `5 hours`, `12 minutes`, `0.30 s`."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * unit:
            return count(int(seconds // unit), name)
    return f"{seconds:.2f} s"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b, c`, and how many more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
