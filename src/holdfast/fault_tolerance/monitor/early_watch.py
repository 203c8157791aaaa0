"""Early detection in the monitor: samples for the rule, and its sign as a rank that is late before its limit.

Only where the user asked for it. What is sampled, and what follows from it, is in :mod:`holdfast.incidents.early`.
Does not cover: signs that are not certain; they are told as a suspicion, and nobody is signalled for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.incidents.early import EarlyDetection
from holdfast.incidents.early_samples import sample, state
from holdfast.incidents.early_signs import Sign

from ..board import BoardReader
from .deadlines import Deadline
from .gaps import SECOND
from .judgement import EARLY, Late

STANDING = "TZ"  # states in which a rank stays until somebody else does something


class EarlyWatch:
    """The signs of one cycle."""

    def __init__(self, launcher_pid: int, tell: Callable[[dict[str, Any]], object]) -> None:
        self._launcher = launcher_pid
        self._tell = tell
        self._detection = EarlyDetection()
        self._sign: Sign | None = None

    def look(self, now: int, boards: Mapping[int, BoardReader]) -> int:
        """Take samples when it is time; returns when to look again (monotonic nanoseconds)."""
        if now / SECOND >= self._detection.next_look:
            ranks = {}
            for key, reader in boards.items():
                wants_threads = key in self._detection.wants_threads
                if found := sample(reader.snapshot(), now, threads=wants_threads):
                    ranks[key] = found
            stopped = state(self._launcher) in "Tt"
            self._sign = self._detection.look(now / SECOND, ranks, launcher_stopped=stopped)
            if self._sign is not None and not self._sign.certain:
                who = ranks[self._sign.local_rank]
                told = {"event": "suspicion", "rank": who.rank, "pid": who.who[0], "reason": "early"}
                self._tell({**told, "text": self._sign.text})
        return int(self._detection.next_look * SECOND)

    def late(self, boards: Mapping[int, BoardReader]) -> Late | None:
        """The rank that a certain sign is about, as one that is late."""
        sign = self._sign
        if sign is None or not sign.certain or sign.local_rank not in boards:
            return None
        board, since = boards[sign.local_rank].snapshot(), int(sign.since * SECOND)
        return Late(Deadline(since, since, 0.0, EARLY, said=sign.text), sign.local_rank, board)

    def holds(self, late: Late) -> bool:
        """Whether the sign is still there, asked last before the rank is signalled."""
        who, sign = late.board.identity, self._sign
        same = sign is not None and sign.certain and sign.local_rank == late.local_rank
        if same and who is not None and state(who.pid) in STANDING:
            return True
        self._sign = None  # or the next look would take it for a new one
        return False
