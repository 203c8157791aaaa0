"""What one rank sends to rank 0 for a report: a row of fixed length.

First its scores with all 64 bits, since they are compared with thresholds and printed. Then 32-bit floats: of each
column (sections, then kernels) the medians, the totals and the counts, side by side so that they need not be copied to
be computed with; and last what its host lost. Rows are whole words of 8 bytes, in the machine's byte order, which is
that of all ranks. Times are in seconds; NaN says: not measured.
Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

Figures = tuple[float, float, float]
"""Median and total in seconds, and count."""
ABSENT: Figures = (math.nan, 0.0, 0.0)


@dataclass(frozen=True)
class Layout:
    """How many numbers of each kind a row has."""

    scores: int
    columns: int
    extras: int

    @property
    def length(self) -> int:
        """Bytes."""
        return 8 * self.words

    @property
    def words(self) -> int:
        """Of 8 bytes; two floats each."""
        return self.scores + (3 * self.columns + self.extras + 1) // 2


def pack(scores: Sequence[float], columns: Sequence[Figures], extras: Sequence[float]) -> bytes:
    """One rank's row."""
    medians, totals, counts = zip(*columns, strict=True) if columns else ((), (), ())
    floats = (*medians, *totals, *counts, *extras)
    padding = len(floats) % 2
    return struct.pack(f"={len(scores)}d{len(floats)}f{4 * padding}x", *scores, *floats)


def scores_of(rows: bytes | bytearray, layout: Layout) -> list[list[float]]:
    """Each score as a list over ranks."""
    numbers = memoryview(rows).cast("d")
    return [list[float](numbers[score :: layout.words]) for score in range(layout.scores)]


def extras_of(rows: bytes | bytearray, layout: Layout, number: int) -> tuple[float, ...]:
    """The numbers after the columns of one rank."""
    start = number * layout.length + 8 * layout.scores + 12 * layout.columns
    return struct.unpack_from(f"={layout.extras}f", rows, start)
