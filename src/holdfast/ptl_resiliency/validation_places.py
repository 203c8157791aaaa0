"""Where a rank is in a validation, so that ranks with different numbers of batches meet at the end of each data loader.

What always holds: the places of one validation rise; the place at the end of a loader, before its results are reduced
over the ranks, is the same on all ranks. Does not cover: ranks with different numbers of loaders.
"""

from __future__ import annotations

from holdfast.fault_tolerance.stop.rules import LOADER_END, in_loader


class ValidationPlaces:
    """Counts the places of one validation: each is the batch that comes next, or the end of a loader."""

    def __init__(self) -> None:
        self._loader, self._next = 0, 1

    def start(self) -> int:
        """Before the first batch."""
        self._loader, self._next = 0, 1
        return in_loader(0, 1)

    def after_batch(self) -> int:
        """After each batch."""
        self._next = min(self._next + 1, LOADER_END - 1)
        return in_loader(self._loader, self._next)

    def after_loader(self) -> int:
        """When all batches of one loader are done."""
        place = in_loader(self._loader, LOADER_END)
        self._loader, self._next = self._loader + 1, 1
        return place
