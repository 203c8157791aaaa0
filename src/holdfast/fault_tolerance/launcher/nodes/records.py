"""What a job's nodes agree on: one record per restart cycle, and whether it ends the job. Pure.

Each cycle begins with a record that exactly one node got to write (compare-and-set in the store), so all nodes
restart for the same reason, with the same number, and spend one restart of the job's budget, not one each.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

START, RESTART, JOIN, EXCLUDE, END = "start", "restart", "join", "exclude", "end"
PREEMPTED = "preempted"  # the reason of a job's end in which all ranks had been told to stop


@dataclass(frozen=True, slots=True)
class Record:
    """Why the cycle with this number began (or, for END, why none does)."""

    cycle: int
    kind: str
    restarts: int = 0  # restarts of the budget spent so far
    reason: str = ""
    node: str = ""  # who proposed it
    exit_code: int = 0  # of the job; for END only
    lost: int = 0  # nodes of the cycle before that are known not to come back
    back: int = 0  # nodes of the cycle before that are expected back; 0 when none had begun
    others: int = 0  # nodes that came during the cycle before and wait for a place

    def next(
        self,
        kind: str,
        *,
        reason: str,
        node: str,
        restarts: int | None = None,
        exit_code: int = 0,
        lost: int = 0,
    ) -> Record:
        """The record of the cycle after this one; `restarts` stays as it is unless given."""
        used = self.restarts if restarts is None else restarts
        return Record(self.cycle + 1, kind, used, reason, node, exit_code, lost)

    def places(self, least: int, most: int) -> int:
        """How many nodes can take part, of `least` to `most`: as many as are expected, so that none waits for more."""
        return max(least, min(self.back + self.others, most)) if self.back else most

    def encode(self) -> str:
        """As it stands in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: bytes | str) -> Record:
        """The reverse of :meth:`encode`."""
        return cls(**json.loads(text))


FIRST = Record(0, START)


@dataclass(frozen=True, slots=True)
class Moved:
    """The next cycle has begun (or the job has ended); news only to a node that has not joined it yet."""

    record: Record

    @property
    def cycle(self) -> int:
        """The cycle that this is news in."""
        return self.record.cycle - 1


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node's counter stands still and so do the local ranks."""

    cycle: int
    node: str
    waited: float


@dataclass(frozen=True, slots=True)
class HostLost:
    """The node that hosts the rendezvous store cannot be reached any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodesWaiting:
    """Nodes want to join, and there is room for them."""

    cycle: int
    count: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Another node was told to stop, by the signal with this number; the ranks here agree with its ranks where."""

    cycle: int
    node: str
    signal: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """No node takes part any more: none beats for the job. Told to a node that only hosts the store."""

    waited: float
