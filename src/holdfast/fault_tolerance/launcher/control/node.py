"""The state of one node: what the user set, the cycle it is in, its ranks, and the phase with what that waits for.

One function changes a `Node`: :func:`.controller.step`, through the functions of the phases (:mod:`.gathering`,
:mod:`.running`, :mod:`.stopping`). A phase that ends sets `node.phase` to the next one; `step` then enters it.

    Gather -> Confirm -> Start -> Run -> Settle -> Stop -> Gather | HostOnly | Leave
                                   |                ^
                                   +-> Done --------+-> Drain -> Leave
                                   +-> Preempt -> Drain | Leave
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...stop.rules import TAKES_PART
from . import messages as m
from . import records
from .agreed_stop import AgreedStop
from .liveness import Activity, StoreContact
from .messages import NEVER, Action
from .records import CycleRecord, Ending, Kind, Member, Membership, Progress, View

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
SAVING = 30.0
"""Seconds for a rank that may be saving: with an open `checkpointing` section, or preempted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user set, and what the node is. Times in seconds."""

    me: Member
    least: int = 1
    most: int = 1
    is_host: bool = True  # of the job's store
    is_alone: bool = False  # one node, and no address at which others could join
    max_restarts: int = 0
    reset_on_progress: bool = False
    node_timeout: float = 10.0
    join_timeout: float = 600.0
    last_call: float = 30.0
    term_timeout: float = NEVER
    stop_timeout: float = 15.0
    preempted_code: int = 0
    segment: int = 0  # --ft-segment: nodes in complete groups of one domain; 0: no groups

    @property
    def nnodes(self) -> str:
        """As `--nnodes` has it."""
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(slots=True)
class Rank:
    """A rank of this cycle."""

    local: int
    number: int  # the global rank
    status: int | None = None  # None: it runs
    cause: m.Cause = m.Cause.OWN
    text: str = ""
    began: float = 0.0  # when it ended or began to fail
    failing: bool = False  # it has left the exception that ends it
    verdict: str = ""  # the monitor's, on a hang
    killed: float | None = None  # when SIGKILL was sent
    killed_by_us: bool = False
    blocked_since: float | None = None  # in state D after SIGKILL
    stuck: bool = False  # has outlived SIGKILL, and is not waited for

    @property
    def running(self) -> bool:
        """Whether it has not ended and may still."""
        return self.status is None and not self.stuck

    @property
    def failed(self) -> bool:
        """Whether it failed, or is about to. A hung rank has not succeeded, whatever its exit code."""
        return self.failing or bool(self.verdict) or self.status not in (None, 0)

    @property
    def only_lost_peer(self) -> bool:
        """Whether all that is known is that a peer was gone."""
        return not self.verdict and self.cause is m.Cause.LOST_PEER

    def obeyed(self, number: int) -> bool:
        """Whether it ended by this signal, or with the code that a shell gives for it, or with 0."""
        return self.status in (0, -number, 128 + number)


# -- phases: what each one waits for. Times are seconds without those in which the node was suspended ---------


@dataclass(slots=True)
class Gather:
    """A membership is formed, or this node is no part of it and waits for the next."""

    since: float
    asked: bool = False
    chooser: str = ""  # the value of the lease that this node wrote; "": another node chooses
    replaces: str = ""  # the value that it replaces
    renew_at: float = 0.0
    quorum_since: float | None = None
    formed: bool = False  # this node has written a membership
    has_read: bool = False  # the membership stands, and this node is no part of it
    logged: bool = False  # what it waits for


@dataclass(slots=True)
class Confirm:
    """All members acknowledge; node 0 opens the ranks' store and writes where it is."""

    since: float
    go: str = ""  # where the ranks' store is, on node 0
    written: bool = False


@dataclass(slots=True)
class Start:
    """The ranks are being started."""

    address: str
    port: int


@dataclass(slots=True)
class Run:
    """The ranks train."""

    since: float
    prepared: bool = False
    passed_on: set[int] = field(default_factory=set)  # signals
    stop_seen: float | None = None  # another node was asked to stop
    stop_declined: bool = False


@dataclass(slots=True)
class Settle:
    """A rank has failed: for a moment the cause, or a signal to all processes, may follow."""

    since: float
    run: Run
    for_signal: float = 0.0  # until then a signal to all processes may come
    for_cause: float = 0.0  # until then the rank that the failed ones lost may end
    until: float = 0.0  # the next of these that counts
    proposed: float | None = None


@dataclass(slots=True)
class Stop:
    """The ranks are stopped; `then` follows: the next record, or this node leaves."""

    reason: str
    next: CycleRecord | None = None
    leave: Leave | HostOnly | None = None
    take_evidence: bool = False
    term_at: float | None = None
    hurry: bool = False
    sweeping: bool = False
    swept: bool = False
    report: bool = False
    lost: tuple[str, ...] = ()
    signal: int = 0  # came meanwhile


@dataclass(slots=True)
class Preempt:
    """A signal was passed on, and the ranks have time to save."""

    number: int
    by: str
    since: float
    deadline: float
    failed_at: float | None = None
    hurry: bool = False
    logged: bool = False
    agreed: AgreedStop | None = None


@dataclass(slots=True)
class Done:
    """The local ranks are done; those of other nodes may still fail."""


@dataclass(slots=True)
class Drain:
    """What finished ranks left running may end by itself, then it is swept."""

    until: float
    then: Leave
    sweeping: bool = False


@dataclass(slots=True)
class HostOnly:
    """Without ranks, for the store that this node hosts, until the job ends."""

    code: int
    reason: str
    record: CycleRecord | None = None  # to be written first


@dataclass(slots=True)
class Leave:
    """This node leaves: it writes why, and the store's host waits for the others."""

    code: int
    reason: str
    record: CycleRecord | None = None  # to be written first
    preempted: bool = False
    silent: bool = False  # the store is gone
    until: float = NEVER
    written: bool = False
    hurry: bool = False
    exited: bool = False


Phase = Gather | Confirm | Start | Run | Settle | Stop | Preempt | Done | Drain | HostOnly | Leave


@dataclass(slots=True)
class Node:
    """One node of the job."""

    settings: Settings
    record: CycleRecord = records.FIRST  # of the cycle that runs or is being formed
    membership: Membership | None = None  # of that cycle, or the one before
    began: bool = False  # its ranks were started
    phase: Phase = field(default_factory=lambda: Gather(0.0))
    entered: Phase | None = None  # the phase that `step` has entered last
    ranks: dict[int, Rank] = field(default_factory=dict)
    view: View = field(default_factory=lambda: View({}))
    contact: StoreContact = field(default_factory=StoreContact)
    proposed: CycleRecord | None = None  # written, and the standing value is not known yet
    tick: m.Tick = field(default_factory=m.Tick)  # the newest
    activity: Activity = field(default_factory=Activity)
    evidence: bool = False  # taken, or with the monitor, in this cycle
    evidence_until: float = 0.0  # evidence is being taken, until then at most
    suspended: float = 0.0  # seconds in all; every time below is counted without them
    beaten: float = -NEVER
    beats: int = 0
    newcomers: int = 0  # as written to the store by node 0
    gone: set[str] = field(default_factory=set)  # all nodes that were found lost or left, over all cycles
    clock: tuple[float, float] = (0.0, 0.0)  # job time, and the local time at which it was that
    noted: int = 0  # the newest cycle whose record was read
    pending: m.Signal | None = None  # came while the ranks were being started

    @property
    def name(self) -> str:
        """The node's."""
        return self.settings.me.node

    @property
    def is_leader(self) -> bool:
        """Whether this is node 0 of the membership."""
        return self.membership is not None and self.membership.names[:1] == (self.name,)

    @property
    def takes_part(self) -> bool:
        """Whether the membership has this node."""
        return self.membership is not None and self.name in self.membership.names

    @property
    def nodes(self) -> int:
        """How many nodes the job has; before the first membership, how many it may have."""
        return len(self.membership.members) if self.membership else self.settings.most

    @property
    def next_key(self) -> str:
        """The key of the record that this node waits for."""
        return records.cycle_key(self.record.cycle + 1)

    @property
    def running(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks.values() if rank.running]

    @property
    def stuck(self) -> list[Rank]:
        """The ranks that even SIGKILL did not end."""
        return [rank for rank in self.ranks.values() if rank.stuck]

    def board(self, local: int) -> m.Board:
        """A rank's board."""
        return self.tick.boards.get(local, m.Board())

    @property
    def stop_pages_in_use(self) -> bool:
        """Whether a rank of this node takes part in agreed stops."""
        return any(view.state == TAKES_PART for view in self.tick.stop_views)

    @property
    def waiting(self) -> int:
        """How many nodes wait for a place, as node 0 has written."""
        value = self.view.get(records.waiting_key(self.record.cycle), "0")
        return int(value) if value.isdecimal() else 0

    def job_time(self, now: float) -> float:
        """Seconds since the job began, as far as this node can tell: it goes on from the newest record."""
        return self.clock[0] + now - self.clock[1]

    def ending(self, now: float) -> Ending:
        """The end of this cycle as this node sees it."""
        boards: Mapping[int, m.Board] = self.tick.boards if self.began else {}
        progress = Progress(
            max((board.step for board in boards.values()), default=-1),
            sum(board.checkpoints for board in boards.values()),
        )
        room = max(0, self.settings.most - self.nodes)
        return Ending(self.record, self.began, self.name, self.job_time(now), self.waiting, room, progress)

    def without_me(
        self, reason: str, now: float, *, code: int, preempted: bool = False
    ) -> CycleRecord | None:
        """The record by which the others carry on without this node, or the job ends; None: they decide themselves.

        A node that hosts the store takes the job with it when it is preempted. A node that fails ends the job where
        too few others are left, for they would wait for a node that cannot take part.
        """
        if not self.takes_part:
            return None
        ending = self.ending(now)
        if preempted and self.settings.is_host:
            return ending.end(reason, code, preempted=True)
        if self.nodes - 1 + self.waiting >= self.settings.least:
            return ending.next(Kind.LEAVE, reason, lost=[self.name])
        return None if preempted else ending.end(reason, code)

    def advance(self, record: CycleRecord, now: float) -> None:
        """The cycle of this record is the one that this node joins next."""
        self.record, self.proposed, self.began = record, None, False
        keys = {
            records.LAUNCHERS,
            records.LEFT,
            records.members_key(record.base),
            records.members_key(record.formed),
        }
        self.view = View({key: value for key, value in self.view.items() if key in keys})

    def propose(self, record: CycleRecord) -> list[Action]:
        """Write the next record, unless that was done; the one that stands comes back as an event."""
        if self.proposed is not None:
            return []
        self.proposed = record
        return [m.Cas(records.cycle_key(record.cycle), "", record.encode())]


def log(text: str, level: int = logging.WARNING) -> m.Log:
    """A line on the console."""
    return m.Log(level, text)


def journal(kind: str, **values: Any) -> m.Journal:
    """An event for the journal."""
    return m.Journal(kind, values)


def code_of(number: int, preempted_code: int) -> int:
    """The exit code of a launcher that was asked to stop by this signal and in which no rank failed."""
    return INTERRUPTED if number == signal.SIGINT else preempted_code


def received(event: m.Signal) -> list[Action]:
    """Log and record a signal that asks the job to stop."""
    name = signal.Signals(event.number).name
    if event.by:
        text = f"{event.by} was told to stop ({name}): so are all ranks, shutting down workers"
        return [log(text), journal("preemption", signal=name, by=event.by)]
    return [
        log(f"Received Signals.{name} death signal, shutting down workers"),
        journal("preemption", signal=name),
    ]
