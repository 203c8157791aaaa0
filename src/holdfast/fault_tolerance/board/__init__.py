"""The board: the shared-memory page on which a rank shows where it is, readable by everyone on the node at any time.

Owns the layout of the file and every access to it; no other package uses an offset. A write costs well under a
microsecond, cannot block and cannot fail because a reader is slow, stopped or gone. A reader needs nothing from
the rank: what was written is still there after SIGKILL, and readable while the rank is stopped.

Covers: `Board` (the launcher allocates it and writes who the rank is), `BoardWriter` (in the rank), `BoardReader`
(any process of the node). Does not cover: ranks on other nodes, and protection from the rank's own user, who can always
open the file; page 0 is read-only in the rank against accidents, not against malice.
"""

from __future__ import annotations

from ..errors import BoardError, BoardUnavailable
from .reader import Board, BoardReader
from .values import BoardEvent, Identity, Limits, OpenSection, Request, SectionTotal, Snapshot
from .writer import BoardWriter

__all__ = [
    "Board",
    "BoardError",
    "BoardEvent",
    "BoardReader",
    "BoardUnavailable",
    "BoardWriter",
    "Identity",
    "Limits",
    "OpenSection",
    "Request",
    "SectionTotal",
    "Snapshot",
]
