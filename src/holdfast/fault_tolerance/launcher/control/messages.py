"""Events and actions: everything that goes into the controller, and everything that comes out. Pure values.

The driver turns what happens on the node into events, in the order in which it happened, and carries out actions in
their order. It keeps a clock in monotonic seconds that excludes the time in which the node was suspended; the events
have durations, no times. It drops what belongs to an earlier cycle, and sends a fresh `Tick` before a `RankExited`.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...stop.rules import RankView, Word
from .records import CycleRecord, Membership

NEVER = math.inf
PASSED_ON = {int(signal.SIGUSR1), int(signal.SIGUSR2)}
"""Signals that are passed on to the ranks without a deadline."""


class Cause(str, Enum):
    """The reason for a rank's end, from its last exception."""

    OWN = "own"  # its own exception, exit code or signal
    LOST_PEER = "lost_peer"  # it lost the connection to another rank
    TIMED_OUT = "timed_out"  # it waited for other ranks in vain, until torch's timeout
    LOST_WORKER = "lost_worker"  # a signal ended its data-loader workers


@dataclass(frozen=True, slots=True)
class Board:
    """One rank's board."""

    step: int = -1
    checkpoints: int = 0  # that it finished in this cycle
    idle_for: float | None = None  # seconds since the rank last wrote to it; None: it never connected
    is_saving: bool = False  # a `checkpointing` section is open
    ended_for: float | None = None  # seconds since its main thread ended, or since what it did later
    has_raised: bool = False  # an uncaught exception ended the main thread


# -- events ---------------------------------------------------------------------------------------------------


class Event:
    """Something that happened, as the driver reports it."""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """The state of the node: sent at `next_deadline`, and at least once a second."""

    contact: float = 0.0  # seconds since the store last answered
    refused: str = ""  # for two seconds no process has listened at the store's address: the reason
    rank_store: str = ""  # the ranks' store of this cycle could not be opened, or has failed: the reason
    boards: Mapping[int, Board] = field(default_factory=dict)  # by local rank
    cpu: float = 0.0  # CPU seconds per second that the ranks used lately
    blocked: frozenset[int] = frozenset()  # local ranks that were sent SIGKILL and are in state D
    stop_views: tuple[RankView, ...] = ()  # the pages of the agreed stop; empty: there are none


@dataclass(frozen=True, slots=True)
class Signal(Event):
    """The launcher got a signal, or a rank got one and wrote so on its page (`by` is "rank 3")."""

    number: int
    by: str = ""

    @property
    def is_stop(self) -> bool:
        """Whether it asks the job to stop. SIGUSR1 and SIGUSR2 often mean "save and continue": they are passed on."""
        return self.number not in PASSED_ON or bool(self.by)


@dataclass(frozen=True, slots=True)
class Started(Event):
    """All ranks of this node run; or, with `failure`, they could not be started and none is left."""

    failure: str = ""
    pids: Mapping[int, int] = field(default_factory=dict)  # by local rank


@dataclass(frozen=True, slots=True)
class RankExited(Event):
    """A rank ended. What the monitor reported of it, and what it requested, was sent before."""

    local: int
    status: int  # as subprocess has it: negative for a signal
    cause: Cause = Cause.OWN
    text: str = ""  # the exception, or the exit status in words
    ago: float = 0.0  # seconds since it ended, or began to fail
    has_raised: bool = False  # an unhandled exception was ending it
    failure: str = ""  # the exception and its step, equal where cycles fail in the same way; "": not known


@dataclass(frozen=True, slots=True)
class RankFailing(Event):
    """A rank that still runs has left the exception that ends it."""

    local: int
    cause: Cause
    text: str
    ago: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ExitDescribed(Event):
    """The answer to `DescribeExit`: what keeps the process, as the end of a sentence."""

    cycle: int
    local: int
    kept_by: str


@dataclass(frozen=True, slots=True)
class Verdict(Event):
    """The monitor found a hang, has its evidence, and terminates the rank."""

    local: int
    text: str


@dataclass(frozen=True, slots=True)
class Requested(Event):
    """A rank requested `exclude_this_node` or `shutdown_workload`."""

    rank: int
    action: str
    description: str


@dataclass(frozen=True, slots=True)
class EvidenceTaken(Event):
    """`TakeEvidence` with this trigger is done."""

    cycle: int
    trigger: str


@dataclass(frozen=True, slots=True)
class Swept(Event):
    """`Sweep` is done: no process that a rank left behind is left."""


@dataclass(frozen=True, slots=True)
class Reported(Event):
    """What `Report` began is done: the report is written, or this node gave its evidence to the one that writes it."""

    cycle: int


@dataclass(frozen=True, slots=True)
class Suspected(Event):
    """The report of a failure makes this node suspect."""


@dataclass(frozen=True, slots=True)
class Health(Event):
    """The answer to `CheckHealth` of this cycle, or what was found since while the ranks train."""

    cycle: int
    sick: str = ""  # why no rank may train on this node; "": nothing
    is_own: bool = True  # it is this node's alone; False: other nodes may share it, such as storage


@dataclass(frozen=True, slots=True)
class StoreView(Event):
    """The value of a watched key, "" if it has none: after its first read, after each change, and after `Cas`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RankStoreOpen(Event):
    """The ranks' store of this cycle listens here."""

    cycle: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class IterationRead(Event):
    """What `ReadIteration` found: 0 where the file does not exist, -1 where no number could be read."""

    cycle: int
    number: int = -1


@dataclass(frozen=True, slots=True)
class LauncherFailed(Event):
    """An error of the launcher itself, after which its ranks were stopped."""

    why: str


# -- actions --------------------------------------------------------------------------------------------------


class Action:
    """Something to do.

    Operations on the store are carried out in order, and repeated on a new connection until they have an answer, so
    each of them may be carried out twice.
    """


@dataclass(frozen=True, slots=True)
class Cas(Action):
    """Write `new` where `old` is the value ("": none); the value after that comes back as `StoreView`."""

    key: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Put(Action):
    """Write a value that only this node writes; of several for one key, only the newest has to be written."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Append(Action):
    """Add a line to a log."""

    key: str
    line: str


@dataclass(frozen=True, slots=True)
class OpenRankStore(Action):
    """Open a fresh store for the ranks of this cycle."""

    cycle: int


@dataclass(frozen=True, slots=True)
class StartRanks(Action):
    """Start this node's ranks, which meet at `address`:`port`; close the stores of earlier cycles."""

    cycle: int
    membership: Membership
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class SignalRanks(Action):
    """Send a signal, and SIGCONT, to all ranks that run.

    With `seconds_left` (infinite: no limit) the signal asks them to stop: it goes to their pages, with that time.
    """

    number: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class KillRank(Action):
    """End a rank that was waited for `waited` seconds, by SIGKILL or a milder signal."""

    local: int
    waited: float
    why: str
    number: int = signal.SIGKILL


@dataclass(frozen=True, slots=True)
class DescribeExit(Action):
    """Describe what keeps the process of a rank that is at its end; answered by `ExitDescribed`."""

    local: int


@dataclass(frozen=True, slots=True)
class ReportExits(Action):
    """Report the ranks that were described although none has failed: the job continues."""

    why: str


@dataclass(frozen=True, slots=True)
class HoldVerdicts(Action):
    """From here on the monitor judges no rank of this cycle."""


@dataclass(frozen=True, slots=True)
class TakeEvidence(Action):
    """Capture the ranks within `seconds`; answered by `EvidenceTaken`."""

    trigger: str  # "crash" or "elsewhere"
    seconds: float
    rank: int | None = None  # that ended


@dataclass(frozen=True, slots=True)
class CheckHealth(Action):
    """Check this node in full, before it asks for a place; answered by `Health`."""

    cycle: int


@dataclass(frozen=True, slots=True)
class ReadIteration(Action):
    """Read the iteration of the last checkpoint; answered by `IterationRead`, unless the filesystem hangs."""

    cycle: int


@dataclass(frozen=True, slots=True)
class Sweep(Action):
    """Kill the processes that the ranks left behind, after at most `linger` seconds in which they may end."""

    linger: float = 0.0


@dataclass(frozen=True, slots=True)
class Report(Action):
    """Log and record how the ranks failed, and report the incident: the ranks are gone.

    `failed` has the local ranks that failed, the first one first; `record` is that of the next cycle, None where the
    node received a stop signal. Its node writes the report. Answered by `Reported`.
    """

    failed: tuple[int, ...]
    record: CycleRecord | None = None


@dataclass(frozen=True, slots=True)
class WriteStopPages(Action):
    """Pass the newest word on the agreed stop on to the ranks."""

    word: Word


@dataclass(frozen=True, slots=True)
class Journal(Action):
    """Record an event in the journal."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log(Action):
    """Log a line."""

    text: str
    level: int = logging.WARNING


@dataclass(frozen=True, slots=True)
class Exit(Action):
    """End the launcher, once its operations on the store are carried out: at most `wait` seconds later."""

    code: int
    wait: float = 3.0


def journal(kind: str, **values: object) -> Journal:
    """An event for the journal."""
    return Journal(kind, values)
