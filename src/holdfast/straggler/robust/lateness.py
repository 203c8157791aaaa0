"""Who keeps the others waiting at the collectives? The rank that waits least.

In synchronised training every rank's step takes equally long, since all wait for the slowest: its own collectives are
short, everybody else's are long by what they wait. So a collective's time is evidence against the rank that has little
of it, and for the rank that has much.

Does not cover: ranks of one group that take part in different collectives; a rank that is late in a communicator of a
few ranks is seen only if the groups are those communicators. A slow link, which makes a collective long for everybody.
Operations with a root (broadcast, reduce, scatter, gather) or of pairs (send, receive): who hands over waits least
without being late. Whoever measures must leave them out, as `snapshot` does with kernels; in a `collective_section`
nobody can tell them from others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .significance import column_medians
from .window import Array, Selector, Window, cells


@dataclass(frozen=True)
class Lateness:
    """Seconds [members] in this window by which each rank waited less than the median rank; negative: it waited more.

    NaN where the rank or too few ranks have collectives.
    """

    usual: Array
    """From each collective's median: what a rank is late by in step after step."""
    mean: Array
    """From its mean: rare long pauses too, and the noise of a busy machine."""


def lateness(
    window: Window, members: NDArray[np.intp], collectives: Selector, min_ranks: int, min_samples: int
) -> Lateness:
    """Compared per call, because ranks may have measured different numbers of calls, and times the group's usual
    number of calls."""
    counts = cells(window.counts, members, collectives)
    medians = cells(window.medians, members, collectives)
    totals = cells(window.totals, members, collectives)
    known = np.isfinite(medians) & (medians > 0) & (counts >= min_samples)
    known &= known.sum(axis=0) >= min_ranks
    if not known.any():
        nothing = np.full(len(members), np.nan)
        return Lateness(nothing, nothing)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, totals / counts, np.nan)
    calls = column_medians(np.where(known, counts, np.nan))

    def late(times: Array) -> Array:
        seconds = np.nan_to_num((column_medians(times) - times) * calls).sum(axis=1)
        return np.where(known.any(axis=1), seconds, np.nan)

    return Lateness(late(np.where(known, medians, np.nan)), late(mean))
