"""Does it last? Each sign against a rank must show in k of the last n windows before anybody is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.bool_]
Name = TypeVar("Name", bound=Hashable)


class Persistence(Generic[Name]):
    """The signs of the last `kept` windows, by name.

    A window in which a name is not reported counts as one without that sign. Signs start anew when the number of ranks
    changes.
    """

    def __init__(self, needed: int, kept: int) -> None:
        self.needed = needed
        self.kept = kept
        self._windows: deque[Mapping[Name, Signs]] = deque(maxlen=kept)
        self._ranks = -1

    def add(self, signs: Mapping[Name, Signs], ranks: int) -> dict[Name, NDArray[np.intp]]:
        """Take the signs [ranks] of one window; in how many of the kept windows each rank had each of them [ranks]."""
        if ranks != self._ranks:
            self._windows.clear()
            self._ranks = ranks
        self._windows.append({name: sign for name, sign in signs.items() if sign.any()})
        hits: dict[Name, NDArray[np.intp]] = {}
        for window in self._windows:
            for name, sign in window.items():
                hits[name] = hits.get(name, np.zeros(ranks, dtype=np.intp)) + sign
        return hits

    @property
    def windows(self) -> int:
        """How many windows are kept now."""
        return len(self._windows)
