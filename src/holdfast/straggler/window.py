"""What all ranks measured between two reports: the input of the robust verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Selector = slice | NDArray[np.intp]

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution: its deviation over its median absolute deviation."""
KERNEL, SECTION, COLLECTIVE = "kernel", "section", "collective"
KINDS = (KERNEL, SECTION, COLLECTIVE)


@dataclass(frozen=True)
class Window:
    """One window of `ranks` x `keys`. ValueError if shapes or kinds do not fit together.

    `medians` and `totals` are in seconds; a NaN median says that the rank did not measure the key, and `totals` and
    `counts` of such a cell are ignored. float32 halves the time of a large world.
    """

    keys: Sequence[str]
    """Names, one per column."""
    kinds: Sequence[str]
    """"kernel" (compute on the GPU), "section" (wall time) or "collective" (waiting included), one per column."""
    nodes: Sequence[str]
    """Names of the nodes, one per rank."""
    medians: Array
    totals: Array
    counts: Array
    host_losses: Mapping[str, Array] = field(default_factory=dict)
    """Seconds that each rank's host lost in this window, by cause ("garbage collection", "CPU steal"): [ranks]."""
    elapsed: Array | None = None
    """Seconds of wall time that the times of this window were measured in; NaN where unknown: [ranks]. Where only
    every n-th run is measured, an n-th of the time between two reports."""

    def __post_init__(self) -> None:
        shape = (len(self.nodes), len(self.keys))
        for name in ("medians", "totals", "counts"):
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"window: {name} has shape {getattr(self, name).shape}, not {shape} (ranks, keys)"
                )
        if len(self.kinds) != len(self.keys):
            raise ValueError(f"window: {len(self.kinds)} kinds for {len(self.keys)} keys")
        unknown = set(self.kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"window: unknown kinds {sorted(unknown)}; allowed: {', '.join(KINDS)}")
        for cause, seconds in self.host_losses.items():
            if seconds.shape != shape[:1]:
                raise ValueError(f"window: losses by {cause} have shape {seconds.shape}, not {shape[:1]}")

        if self.elapsed is not None and self.elapsed.shape != shape[:1]:
            raise ValueError(f"window: elapsed has shape {self.elapsed.shape}, not {shape[:1]}")

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @cached_property
    def columns(self) -> dict[str, NDArray[np.intp]]:
        """The columns of each kind."""
        kinds = np.asarray(self.kinds, dtype=str)
        return {kind: np.flatnonzero(kinds == kind) for kind in KINDS}


def of_rows(
    rows: bytes | bytearray,
    skipped: int,
    columns: Sequence[tuple[str, str]],
    nodes: Sequence[str],
    losses: Sequence[str],
    after: int = 0,
) -> Window:
    """The window in what all ranks sent, without copying it: of each rank `skipped` bytes, then 32-bit floats: the
    medians, totals and counts of all columns (name and kind), the losses, the seconds elapsed, and `after` others.
    ValueError if they are not as many."""
    fields = [(name, "=f4", (len(columns),)) for name in ("medians", "totals", "counts")]
    after += (3 * len(columns) + len(losses) + 1 + after) % 2  # rows are whole words of 8 bytes
    row = np.dtype([("skipped", f"V{skipped}"), *fields, ("extras", "=f4", (len(losses) + 1 + after,))])
    table = np.frombuffer(rows, dtype=row)
    return Window(
        keys=tuple(name for name, _ in columns),
        kinds=tuple(kind for _, kind in columns),
        nodes=tuple(nodes),
        medians=table["medians"],
        totals=table["totals"],
        counts=table["counts"],
        host_losses={cause: table["extras"][:, number] for number, cause in enumerate(losses)},
        elapsed=table["extras"][:, len(losses)],
    )


def selector(indices: NDArray[np.intp]) -> Selector:
    """The same rows or columns as a slice where they lie side by side, so that numpy need not copy them."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices) and np.all(np.diff(indices) == 1):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def cells(table: Array, rows: Selector, columns: Selector) -> Array:
    """These rows and columns of a table [ranks, keys]; a view where both lie side by side."""
    return table[rows][:, columns] if isinstance(rows, slice) else table[:, columns][rows]


def quantile(ordered: Array, known: Array, share: float) -> Array:
    """Of the `known` first values along the last axis, which are sorted; interpolated."""
    place = share * np.maximum(known - 1, 0)[..., None]
    low = np.take_along_axis(ordered, np.floor(place).astype(np.intp), axis=-1)
    high = np.take_along_axis(ordered, np.ceil(place).astype(np.intp), axis=-1)
    result: Array = (low + (place - np.floor(place)) * (high - low))[..., 0]
    return result
