"""Which launchers are still there while they agree where all ranks stop. Pure.

Each node moves a count of its own in the notes, about once a second, and looks at those it waits for.
What always holds: a node that has left says so, and is known to have left; one that vanished is known after `limit`
seconds.
Does not cover: what follows from it (`withdraw` of :mod:`.parties`).
"""

from __future__ import annotations

from collections.abc import Iterable

from .notes import Notes, alive_key

BEAT = 1.0  # seconds between two signs of life, and between two looks
LEFT = "left"


class Presence:
    """As `node` sees the others."""

    def __init__(self, notes: Notes, node: int, limit: float) -> None:
        self._notes, self._node, self._limit = notes, node, limit
        self._every = min(BEAT, limit / 4)
        self._count, self._next = 0, float("-inf")
        self._seen: dict[int, tuple[str, float]] = {}

    def due(self, now: float) -> bool:
        """Give the sign of life if it is time for it; True: it is also time to look."""
        if now < self._next:
            return False
        self._next = now + self._every
        self._count += 1
        self._notes.put(alive_key(self._node), str(self._count))
        return True

    def leave(self) -> None:
        """This node waits for nobody any more."""
        self._notes.put(alive_key(self._node), LEFT)

    def gone(self, nodes: Iterable[int], now: float) -> int | None:
        """One of these nodes that has left, or whose launcher gives no sign of life any more."""
        for node in nodes:
            text = self._notes.look(alive_key(node))
            before, since = self._seen.get(node, (None, now))
            if text != before:
                self._seen[node], since = (text, now), now
            if text == LEFT or now - since >= self._limit:
                return node
        return None
