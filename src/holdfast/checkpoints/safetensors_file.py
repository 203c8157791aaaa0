"""A safetensors file: whether it is complete. Its header, at the beginning, says where the last tensor ends.

What always holds: only the header is read. Does not cover: bytes that changed.
"""

from __future__ import annotations

import json
from pathlib import Path

_LARGEST_HEADER = 100_000_000  # the format's own limit


def why_incomplete(path: Path) -> str:
    """Why it is not complete; nothing if it is. Raises OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or 8 + length > size:
            return f"is cut off in its header, after {size} bytes"
        if length > _LARGEST_HEADER:
            return "is no safetensors file: its header is too long"
        raw = file.read(length)
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        return "is damaged: its header cannot be read"
    return "" if size == needed else f"has {size} bytes of {needed}"
