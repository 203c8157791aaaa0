"""What one rank sends to rank 0 for a report: its scores, then the figures of its sections.

Pure. Scores keep all 64 bits, since they are compared with thresholds and printed. Figures are 32-bit floats: the
median and the total in seconds, and the count of each section, in the order of the names that all ranks share.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence

from ..statistic import Statistic, Summary

FIGURES = 3
"""Of each section: median, total, count."""
_S = 1e-3  # summaries of sections are in milliseconds


def figures(names: Iterable[str], summaries: Mapping[str, Summary]) -> list[float]:
    """The figures of this rank's sections; NaN, 0, 0 of one that it did not run."""
    found: list[float] = []
    for name in names:
        one = summaries.get(name)
        if one is None:
            found += (math.nan, 0.0, 0.0)
        else:
            number = one[Statistic.NUM]
            found += (one[Statistic.MED] * _S, number * one[Statistic.AVG] * _S, number)
    return found


def pack(scores: Sequence[float], figures: Sequence[float]) -> bytes:
    """One rank's row."""
    return struct.pack(f"<{len(scores)}d{len(figures)}f", *scores, *figures)


def unpack(rows: Sequence[bytes], scores: int) -> tuple[list[tuple[float, ...]], bytes]:
    """Of the rows of all ranks, each of the first `scores` numbers as a tuple over ranks, and all figures, rank after
    rank, as they came: only who judges them needs them as numbers."""
    form = struct.Struct(f"<{scores}d")
    columns = list(zip(*(form.unpack_from(row) for row in rows), strict=True))
    return columns, b"".join(row[form.size :] for row in rows)
