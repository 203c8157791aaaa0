"""What is looked at: the ranks of one job on this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..gathering.local_rank import LocalRank
from ..place import Place


@dataclass
class Job:
    """What is looked at. `title` says what it is, for a person."""

    title: str
    place: Place
    ranks: list[LocalRank]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of one of its ranks: what in it is secret is not written."""
    notes: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Give the boards back."""
        for rank in self.ranks:
            if rank.board is not None:
                rank.board.close()


def how_many(local: int, place: Place) -> str:
    """`2 ranks of 8 on node gpu-12`."""
    ranks_here = f"{local} rank{'s' if local > 1 else ''}"
    if place.nodes > 1:
        return f"{ranks_here} of {place.world_size} on node {place.node}; those of other nodes are not seen from here"
    return f"{ranks_here} on node {place.node}"
