"""What a writer counts, as numbers that `strokes` and the C core (`holdfast._step`, where it was built) share.

The core has a type with these attributes, whose values it reads and writes without the interpreter; without the core
they are ordinary ones. What always holds: both are the same to Python. Does not cover: what the numbers mean, and who
may change them; that is `strokes`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import layout as L

_LAYOUT = (
    *(L.SEQUENCE, L.HEARTBEATS, L.LAST_HEARTBEAT, L.STEP, L.SECTIONS_OPENED, L.OUT_SINCE, L.LAST_EDGE),
    *(L.SINCE, L.RING, L.RING_MASK, L.EVENT_WORDS, L.KIND_BITS, L.START, L.END, L.STEPPED),
    *(L.FIRST_STEP, L.LONGEST_STEP, L.SPENT, L.CLOSED),
)
"""In the order of the core's."""

try:
    from holdfast import _step as core

    core.use_layout(_LAYOUT)
except (
    ImportError,
    AttributeError,
    ValueError,
):  # not built, or built from other sources and left in a checkout
    core = None  # type: ignore[assignment]


def exported(words: memoryview) -> tuple[int, Any]:
    """The address of these words, and what keeps their memory there: a mapping stays mapped as long."""
    keeper = (ctypes.c_int64 * len(words)).from_buffer(words)
    return ctypes.addressof(keeper), keeper


class PlainCounts:
    """Ordinary attributes."""

    __slots__ = (
        "_beats",
        "_last_beat",
        "_longest_gap",
        "_opened_ever",
        "_out_since",
        "_over",
        "_sequence",
    )

    _sequence: int
    _beats: int
    _opened_ever: int
    _out_since: int
    _last_beat: int
    _longest_gap: int
    _over: bool

    def _bind(self, words: memoryview) -> None:
        """From now on strokes store into these words: for the core, which does not look."""


if TYPE_CHECKING or core is None:
    Counts = PlainCounts
else:

    class Counts(core.Counts):
        """The core's."""

        __slots__ = ()

        def _bind(self, words: memoryview) -> None:
            """From now on strokes store into these words."""
            self._point_at(*exported(words))
