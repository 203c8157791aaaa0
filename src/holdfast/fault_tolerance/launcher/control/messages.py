"""Events and actions: everything that goes into the controller, and everything that comes out. Pure values.

The driver turns what happens on the node into events, in the order in which it happened, and carries out actions in
their order. Times are monotonic seconds of the node unless the text says otherwise.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...stop.notes import Word
from ...stop.rules import RankView
from .records import Membership

NEVER = math.inf
PASSED_ON = {int(signal.SIGUSR1), int(signal.SIGUSR2)}
"""Signals that are passed on to the ranks without a deadline."""


class Cause(str, Enum):
    """What a rank's end follows from, as far as the rank left word."""

    OWN = "own"  # its own exception, exit code or signal
    LOST_PEER = "lost_peer"  # it lost the connection to another rank
    LOST_WORKER = "lost_worker"  # a signal ended its data-loader workers


@dataclass(frozen=True, slots=True)
class Board:
    """One rank's board."""

    step: int = -1
    checkpoints: int = 0  # that it finished in this cycle
    activity: float | None = None  # when the rank last wrote to it; None: it never connected
    saving: bool = False  # a `checkpointing` section is open


# -- events ---------------------------------------------------------------------------------------------------


class Event:
    """Something that happened, as the driver reports it."""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed: sent at `next_deadline`, and at least once a second."""

    contact: float = 0.0  # seconds since the store last answered
    round_trip: float = 0.0  # seconds that an answer takes
    boards: Mapping[int, Board] = field(default_factory=dict)  # by local rank
    cpu: float = 0.0  # CPU seconds per second that the ranks used lately
    blocked: frozenset[int] = frozenset()  # local ranks that were sent SIGKILL and are in state D
    stop_views: tuple[RankView, ...] = ()  # the pages of the agreed stop; empty: there are none


@dataclass(frozen=True, slots=True)
class Suspended(Event):
    """The launcher, or the whole node, stood still for so many seconds. Sent before any other event afterwards."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Signal(Event):
    """The launcher got a signal; or `by` ("rank 3") got it, which says so on its page."""

    number: int
    by: str = ""

    @property
    def stops(self) -> bool:
        """Whether it asks the job to stop. SIGUSR1 and SIGUSR2 often mean "save and carry on": they are passed on."""
        return self.number not in PASSED_ON


@dataclass(frozen=True, slots=True)
class RanksStarted(Event):
    """All ranks of this node run."""


@dataclass(frozen=True, slots=True)
class StartFailed(Event):
    """The ranks could not be started; none of them is left."""

    why: str


@dataclass(frozen=True, slots=True)
class RankExited(Event):
    """A rank ended; what the monitor reported of it before was sent before."""

    local: int
    status: int  # as subprocess has it: negative for a signal
    cause: Cause = Cause.OWN
    text: str = ""  # the exception, or the exit status in words
    began: float | None = None  # when it began to fail, where that was earlier


@dataclass(frozen=True, slots=True)
class RankFailing(Event):
    """A rank that still runs has left the exception that ends it."""

    local: int
    cause: Cause
    text: str
    began: float


@dataclass(frozen=True, slots=True)
class Verdict(Event):
    """The monitor found a hang, has its evidence and terminates the rank."""

    local: int
    text: str


@dataclass(frozen=True, slots=True)
class Killed(Event):
    """The monitor sent SIGKILL to a rank."""

    local: int


@dataclass(frozen=True, slots=True)
class Requested(Event):
    """A rank asked for `exclude_this_node` or `shutdown_workload`."""

    rank: int
    action: str
    description: str


@dataclass(frozen=True, slots=True)
class EvidenceTaken(Event):
    """What `TakeEvidence` asked for is done."""


@dataclass(frozen=True, slots=True)
class Swept(Event):
    """No process that a rank left behind is left."""


@dataclass(frozen=True, slots=True)
class DescendantsEnded(Event):
    """The processes that finished ranks left running have ended."""


@dataclass(frozen=True, slots=True)
class StoreView(Event):
    """The value of a watched key, or the standing value after `Cas`; sent when it differs from the last one."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Written(Event):
    """A `Put` or an `Append` has reached the store."""

    key: str


@dataclass(frozen=True, slots=True)
class StoreRefused(Event):
    """For two seconds nothing has listened at the store's address: its host is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class RankStoreOpen(Event):
    """The ranks' store of this cycle listens here."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class RankStoreFailed(Event):
    """The ranks' store could not be opened, or has failed since."""

    why: str


# -- actions --------------------------------------------------------------------------------------------------


class Action:
    """Something to do.

    Operations on the store are carried out in order, and repeated on a new connection until they have an answer, so
    each of them may be carried out twice.
    """


@dataclass(frozen=True, slots=True)
class Cas(Action):
    """Write `new` where `old` stands ("": nothing); the standing value comes back as `StoreView`."""

    key: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Put(Action):
    """Write a value that only this node writes."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Append(Action):
    """Add a line to a log."""

    key: str
    line: str


@dataclass(frozen=True, slots=True)
class OpenRankStore(Action):
    """Open a fresh store for the ranks of this cycle, and close those of cycles before."""


@dataclass(frozen=True, slots=True)
class StartRanks(Action):
    """Start this node's ranks, which meet at `address`:`port`."""

    cycle: int
    membership: Membership
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class SignalRanks(Action):
    """Send a signal to all ranks that run. Its senders' stop pages get it with the moment of their SIGKILL, where the
    signal asks them to stop (`deadline`, infinite: never)."""

    number: int
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class KillRank(Action):
    """SIGKILL a rank that has been waited for so many seconds."""

    local: int
    waited: float


@dataclass(frozen=True, slots=True)
class EnterPhase(Action):
    """Show the monitor the phase of a cycle: "running", "stopping" (no verdicts any more) or "idle"."""

    phase: str
    cycle: int


@dataclass(frozen=True, slots=True)
class TakeEvidence(Action):
    """Capture the ranks within so many seconds; answered by `EvidenceTaken`."""

    trigger: str  # "crash" or "elsewhere"
    seconds: float
    rank: int | None = None  # that ended


@dataclass(frozen=True, slots=True)
class Sweep(Action):
    """Kill what the ranks left behind; answered by `Swept`. Then release the ranks' files."""


@dataclass(frozen=True, slots=True)
class WatchDescendants(Action):
    """Answer with `DescendantsEnded` once nothing that the ranks started is left."""


@dataclass(frozen=True, slots=True)
class PrepareNext(Action):
    """The ranks train: there is time to prepare standbys and the next store."""


@dataclass(frozen=True, slots=True)
class Report(Action):
    """Report the incident of this cycle; of several nodes `reporter` writes it."""

    reason: str
    reporter: str
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteStopPages(Action):
    """Pass the leader's newest word on to the ranks."""

    word: Word


@dataclass(frozen=True, slots=True)
class Journal(Action):
    """Record an event in the journal."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Log(Action):
    """Log a line; `level` is one of logging's."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Exit(Action):
    """The launcher ends."""

    code: int
