"""Whether all launchers of a job were started with the same ``--nnodes``; where not, both sides say so.

The first launcher writes its own into the job's store, and the others compare. The first one that differs leaves word,
for which the first one looks from time to time. What always holds: it is a warning, said once; nothing is decided.
Does not cover: telling the first launcher of more than one that differs.
"""

from __future__ import annotations

import logging

from torch.distributed import Store

logger = logging.getLogger("holdfast.launcher")
FIRST, OTHER = "nnodes", "nnodes/other"


class NodeCount:
    """What this node was told of how many nodes take part."""

    def __init__(self, node: str, least: int, most: int) -> None:
        self._node = node
        self._nnodes = str(least) if least == most else f"{least}:{most}"
        self._looks = False

    def compare(self, notes: Store) -> str | None:
        """The warning, if the job was begun with another number; call it once, before `look`."""
        own = f"{self._nnodes} {self._node}"
        first = notes.compare_set(FIRST, "", own).decode()
        self._looks = first == own
        theirs, _, node = first.partition(" ")
        if theirs == self._nnodes:
            return None
        notes.compare_set(OTHER, "", own)
        return self._contradiction(theirs, node)

    def look(self, notes: Store) -> str | None:
        """The warning of the job's first launcher, if one that differs came since; once."""
        if not self._looks or not notes.check([OTHER]):
            return None
        self._looks = False
        theirs, _, node = notes.get(OTHER).decode().partition(" ")
        return self._contradiction(theirs, node)

    def _contradiction(self, theirs: str, node: str) -> str:
        return (
            f"node {self._node} was started with --nnodes {self._nnodes}, node {node} with --nnodes {theirs}: they may "
            "wait for each other in vain; give all launchers of a job the same"
        )


def say(contradiction: str | None) -> None:
    """Log it, if there is any."""
    if contradiction:
        logger.warning("%s", contradiction)
