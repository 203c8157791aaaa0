"""The state of one node: the cycle it is in, its ranks, and the phase with what that waits for.

One function changes a `Node`: :func:`.controller.step`, through the functions of the phases (:mod:`.gathering`,
:mod:`.running`, :mod:`.stopping`). A phase that ends sets `node.phase` to the next one; `step` then enters it.

    Gather -> Confirm -> Start -> Run -> Settle -> Stop -> Gather | Leave
                                   +-> Done -------^
                                   +-> Preempt ----^
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..exit_codes import as_exit_code
from . import messages as m
from .agreed_stop import AgreedStop
from .messages import NEVER, Action, Board
from .records import FIRST, HOST, LAUNCHERS, LEFT, CycleRecord, Ending, Kind, Membership, Settings, View, key

SAVING = 30.0
"""Seconds for a rank that may be saving: with an open `checkpointing` section, or preempted."""
READING = 1.0
"""Seconds for the filesystem that has the iteration of the last checkpoint."""
BEAT = 1.0
"""Seconds between two heartbeats."""
HOST_SILENT = 5.0
"""Seconds more than for a node before a store that does not answer is given up."""
IDLE_CPU = 0.05
"""CPU seconds per second below which ranks without a board count as idle."""
BUSY = 3.0
"""Times the limit for ranks without a board that keep a CPU busy, and where no rank runs."""


@dataclass(slots=True)
class Rank:
    """A rank of this cycle."""

    local: int
    number: int  # the global rank
    pid: int = 0
    status: int | None = None  # None: it runs
    cause: m.Cause = m.Cause.OWN
    text: str = ""
    began: float = 0.0  # when it ended or began to fail
    has_raised: bool = False  # an unhandled exception ends it
    failure: str = ""  # its exception and step, equal where cycles fail in the same way; "": not known
    verdict: str = ""  # the monitor's, on a hang
    killed_at: float | None = None  # by this launcher
    blocked_since: float | None = None  # in state D after SIGKILL
    is_logged: bool = False  # as one that is slow to end
    is_stuck: bool = False  # has outlived SIGKILL, and is not waited for
    is_exit_logged: bool = False  # that its process stays after an exception
    described_at: float | None = None  # when it was asked what keeps its process
    kept_by: str | None = None  # the answer
    interrupted_at: float | None = None  # by SIGINT, since its process stayed after a good end

    @property
    def is_running(self) -> bool:
        """Whether it has not ended and may still."""
        return self.status is None and not self.is_stuck

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or is about to. A hung rank has not succeeded, whatever its exit code."""
        return self.has_raised or bool(self.verdict) or self.status not in (None, 0)

    @property
    def only_lost_peer(self) -> bool:
        """Whether the only reason found is that a peer was gone."""
        return not self.verdict and self.cause is m.Cause.LOST_PEER

    @property
    def exit_code(self) -> int:
        """As a shell reports it; 0 while it runs."""
        return as_exit_code(self.status or 0)

    def obeyed(self, number: int) -> bool:
        """Whether it ended by this signal, or with the code that a shell gives for it, or with 0."""
        return self.exit_code in (0, 128 + number) and not (self.status and self.has_raised)


# -- whether other nodes are alive ------------------------------------------------------------------------------
#
# Each node writes a heartbeat to the store, a number that grows every second. Another node watches it by its own
# monotonic clock: the clocks of two nodes are never compared. A heartbeat that does not move means that the launcher is
# dead, suspended or unreachable. That alone is no reason to restart, because ranks may train while their launcher is
# suspended. So the ranks of the observing node must have stopped making progress too.
#
# Does not cover: local ranks without a board that keep a CPU busy, for which three times the limit is waited; and a
# network so slow that a heartbeat does not move while the ranks wait: the node is taken for a lost one.


@dataclass(slots=True)
class LocalProgress:
    """The activity of the local ranks over one cycle."""

    idle_for: float | None = None  # seconds since any rank wrote to its board; None: no rank is connected
    cpu: float = 1.0
    longest_gap: float | None = None  # the longest such time after which a rank still wrote again
    quiet_since: float | None = None  # when the ranks last used a processor; None: they do

    def update(self, boards: Mapping[int, Board], cpu: float, now: float) -> None:
        """Take the boards of now."""
        if cpu >= IDLE_CPU:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = now
        idle = min((board.idle_for for board in boards.values() if board.idle_for is not None), default=None)
        if idle is not None and self.idle_for is not None and idle < self.idle_for:
            self.longest_gap = max(self.longest_gap or 0.0, self.idle_for)
        self.idle_for, self.cpu = idle, cpu

    def patience(self, limit: float) -> float:
        """For how many seconds the heartbeat of another node may not move. Until a rank has written twice, its usual
        gap is taken to be `limit`."""
        if self.idle_for is not None:
            gap = limit if self.longest_gap is None else self.longest_gap
            return limit if self.idle_for >= max(limit / 2, 2 * gap) else NEVER
        return limit if self.cpu < IDLE_CPU else BUSY * limit


@dataclass(slots=True)
class StoreContact:
    """When the store last answered, and since when each watched heartbeat has not moved."""

    answered: float = 0.0
    since: dict[str, float] = field(default_factory=dict)  # by key
    has_moved: set[str] = field(default_factory=set)  # keys whose value changed while they were watched

    def stalled_for(self, key: str, now: float) -> float:
        """Seconds for which the value of this key has not moved, as of the last answer; from the first call on."""
        return self.answered - self.since.setdefault(key, now)

    def host_lost(self, patience: float, now: float) -> bool:
        """Whether the store has been silent for so long that this node must leave."""
        return now - self.answered >= HOST_SILENT + patience

    def moved(self, key: str, now: float) -> None:
        """The value of a key has changed."""
        if key in self.since:
            self.since[key] = now
            self.has_moved.add(key)

    def clear(self) -> None:
        """Forget all keys: the next phase watches others."""
        self.since.clear()
        self.has_moved.clear()


# -- phases: what each one waits for --------------------------------------------------------------------------


@dataclass(slots=True)
class Gather:
    """A membership is formed, or this node is no part of it and waits for the next."""

    since: float = 0.0
    quorum_since: float | None = None
    wait: float = 0.0  # seconds from then on for more nodes, on the node that chooses
    is_spare: bool = False  # the membership is formed without this node
    has_compared: bool = False  # another --nnodes was logged
    has_logged: bool = False  # what it waits for


@dataclass(slots=True)
class Confirm:
    """All members acknowledge; node 0 opens the ranks' store and writes where it is."""

    since: float = 0.0
    go: str = ""  # where the ranks' store is, on node 0


@dataclass(slots=True)
class Start:
    """The ranks are being started."""

    address: str
    port: int


@dataclass(slots=True)
class Run:
    """The ranks train."""

    passed_on: set[int] = field(default_factory=set)  # signals
    stop_seen: float | None = None  # another node received a stop signal


@dataclass(slots=True)
class Settle:
    """A rank has failed: for a moment the cause, or a signal to all processes, may follow."""

    for_signal: float = 0.0  # until then a signal to all processes may come
    for_cause: float = 0.0  # until then the rank that the failed ones lost may end
    until: float = 0.0  # the next of these that counts


@dataclass(slots=True)
class Stop:
    """The ranks are stopped; then this node joins the cycle of `next`, or leaves."""

    reason: str
    next: CycleRecord | None = None  # None: not agreed on yet
    leave: Leave | None = None
    linger: float = 0.0  # seconds in which what finished ranks left running may end
    has_failed: bool = False  # local ranks had failed before
    term_at: float | None = None
    deadline: float = 0.0  # of all ranks, after a signal that came meanwhile
    signal: int = 0  # that one
    kills_now: bool = False
    is_sweeping: bool = False
    is_swept: bool = False


@dataclass(slots=True)
class Preempt:
    """A signal was passed on, and the ranks have time to save."""

    number: int
    by: str = ""
    since: float = 0.0
    deadline: float = 0.0
    failed_at: float | None = None
    kills_now: bool = False
    has_logged: bool = False
    agreed: AgreedStop | None = None


@dataclass(slots=True)
class Done:
    """The local ranks are done; those of other nodes may still fail."""

    stop_seen: float | None = None  # another node received a stop signal


@dataclass(slots=True)
class Leave:
    """This node leaves, and writes why; the store's host stays until the others have left.

    `departs` says why the others need a record first, by which they continue or end: "failed", "preempted", "excluded"
    or "shutdown"; "": they need none.
    """

    code: int
    reason: str
    departs: str = ""
    is_preempted: bool = False
    is_silent: bool = False  # the store is gone
    until: float = NEVER
    kills_now: bool = False
    is_agreed: bool = False  # the job has ended, with this code
    has_logged: bool = False  # that it stays as the store's host
    is_written: bool = False  # the other nodes can read that this one leaves
    has_ended: bool = False


Phase = Gather | Confirm | Start | Run | Settle | Stop | Preempt | Done | Leave


@dataclass(slots=True)
class Node:
    """One node of the job. Times in seconds of the driver's clock."""

    settings: Settings
    record: CycleRecord = FIRST  # of the cycle that runs or is being formed
    membership: Membership = field(default_factory=lambda: Membership(()))  # of that cycle, or the one before
    has_begun: bool = False  # its ranks were started
    phase: Phase = field(default_factory=Gather)
    entered: Phase | None = None  # the phase that `step` has entered last
    ranks: dict[int, Rank] = field(default_factory=dict)
    view: View = field(default_factory=lambda: View({}))
    watched: dict[str, float] = field(default_factory=dict)  # keys, with the seconds between two reads
    contact: StoreContact = field(default_factory=StoreContact)
    sent: set[str] = field(default_factory=set)  # keys of this cycle that this node has written
    tick: m.Tick = field(default_factory=m.Tick)  # the newest
    ticked_at: float = 0.0  # when it came
    progress: LocalProgress = field(default_factory=LocalProgress)
    evidence: str = ""  # of this cycle: "crash", "elsewhere", or "monitor"
    evidence_until: float = 0.0  # evidence is being taken, until then at most
    report_until: float = 0.0  # evidence is exchanged with other nodes, until then at most
    iteration: int = -1  # of the last checkpoint, as it was read in this cycle
    read_until: float | None = None  # it is being read, until then at most; None: not in this cycle
    health: str | None = None  # why this node is sick, "": it is not; None: not known yet in this cycle
    may_leave: bool = False  # it is so sick that it leaves, where the others can continue without it
    request: m.Requested | None = None  # a rank's, that no record has fulfilled yet
    pending: m.Signal | None = None  # came while the ranks were being started
    now: float = 0.0  # of the newest event
    beaten: float = -NEVER
    beats: int = 0
    is_suspect: bool = False  # by its own last report; until a membership is formed
    newcomers: int = 0  # as written to the store by node 0
    clock: tuple[float, float] = (0.0, 0.0)  # job time, and the local time at which it was that

    @property
    def name(self) -> str:
        """The node's."""
        return self.settings.me.node

    @property
    def takes_part(self) -> bool:
        """Whether the membership has this node."""
        return self.name in self.membership.names

    @property
    def is_leader(self) -> bool:
        """Whether this is node 0 of the membership."""
        return self.membership.names[:1] == (self.name,)

    @property
    def nodes(self) -> int:
        """How many nodes the job has; before the first membership, how many it may have."""
        return len(self.membership.names) or self.settings.most

    @property
    def awaits_health(self) -> bool:
        """Whether it is not known yet whether this node may ask for a place."""
        return self.health is None and self.settings.checks_health and self.record.gather

    def key(self, kind: str) -> str:
        """The key of this kind for the cycle that runs or is being formed."""
        return key(kind, self.record.cycle)

    @property
    def next_key(self) -> str:
        """The key of the record that this node waits for."""
        return key("cycle", self.record.cycle + 1)

    @property
    def waiting(self) -> int:
        """How many nodes wait for a place."""
        written = self.view.get(self.key("waiting"), "")
        return int(written) if written.isdecimal() else self.record.waiting

    @property
    def running(self) -> list[Rank]:
        """The ranks that have not ended."""
        return [rank for rank in self.ranks.values() if rank.is_running]

    def board(self, local: int) -> m.Board:
        """A rank's board."""
        return self.tick.boards.get(local, m.Board())

    # -- the store --------------------------------------------------------------------------------------------

    def watch(self, name: str, every: float = 0.0) -> str:
        """The value of a key, "" if it has none; from now on it is read so often, until the phase ends."""
        self.watched[name] = min(every or self.quick, self.watched.get(name, NEVER))
        return self.view.get(name, "")

    @property
    def quick(self) -> float:
        """Seconds between two reads of a key that nodes wait for: 5,000 reads a second in the whole job."""
        return max(0.02, self.nodes / 5000)

    @property
    def slow(self) -> float:
        """Seconds between two reads of a key that changes rarely, in jobs of more than 500 nodes more."""
        return 0.1 * max(1.0, self.nodes / 500)

    def is_lost(self, name: str, patience: float, now: float) -> bool:
        """Whether a node has left, or its heartbeat has not moved for `patience` seconds."""
        self.watch(LEFT, 1.0)
        self.watch(key("alive", name), 1.0)
        return name in self.view.log(LEFT) or self.contact.stalled_for(key("alive", name), now) >= patience

    def once(self, action: m.Cas | m.Append | m.Put) -> list[Action]:
        """The action, unless this node has written the key in this cycle."""
        if action.key in self.sent:
            return []
        self.sent.add(action.key)
        return [action]

    def propose(self, record: CycleRecord) -> list[Action]:
        """Write the next record; the one that counts comes back as an event."""
        return self.once(m.Cas(key("cycle", record.cycle), "", record.encode()))

    @property
    def has_proposed(self) -> bool:
        """Whether a record of this node is under way."""
        return self.next_key in self.sent

    # -- the last checkpoint ----------------------------------------------------------------------------------

    def read_iteration(self, now: float) -> list[Action]:
        """Have the iteration of the last checkpoint read, where progress is measured by it."""
        if not self.settings.iteration_file:
            return []
        self.iteration, self.read_until = -1, now + READING
        return [m.ReadIteration(self.record.cycle)]

    def is_reading(self, now: float) -> bool:
        """Whether that is under way."""
        return self.read_until is not None and now < self.read_until

    def take_iteration(self, number: int, now: float) -> None:
        """What was read. Before the first ranks start it is the number from which progress counts."""
        self.iteration, self.read_until = number, now
        if not self.has_begun and self.record.iteration < 0:
            self.record = replace(self.record, iteration=number)

    # -- cycles -----------------------------------------------------------------------------------------------

    def job_time(self, now: float) -> float:
        """Seconds since the job began, as far as this node can see: counted from the newest record."""
        return self.clock[0] + now - self.clock[1]

    def ending(self, now: float) -> Ending:
        """The end of this cycle as this node sees it."""
        boards = self.tick.boards.values() if self.has_begun else ()
        return Ending(
            self.record,
            self.settings,
            self.has_begun,
            self.job_time(now),
            # A node that waits may not be counted yet, where cycles are short: the next membership is formed anew.
            waiting=self.waiting or int(self.is_suspect and self.nodes > 1),
            room=max(0, self.settings.most - self.nodes),
            step=max((board.step for board in boards), default=-1),
            checkpoints=sum(board.checkpoints for board in boards),
            iteration=self.iteration if self.has_begun else -1,
        )

    def departure(self, phase: Leave, now: float) -> CycleRecord | None:
        """The record by which the others continue without this node, or the job ends; None: they need none.

        A preempted host of the store takes the job with it. Where a node failed and too few others are left, the node
        that chooses the members ends the job.
        """
        ending, is_host = self.ending(now), self.settings.is_host
        if self.record.kind is Kind.END:
            return None
        if phase.departs == "shutdown" or (phase.departs == "preempted" and is_host):
            return ending.end(phase.reason, phase.code, preempted=phase.departs == "preempted")
        if not phase.departs or not self.takes_part or self.name in self.record.lost:
            return None
        if phase.departs == "excluded" and phase.code:  # too few nodes are left
            return ending.end(phase.reason, phase.code)
        return ending.next(Kind.LEAVE, phase.reason, lost=[self.name])

    def without(self, name: str, now: float) -> CycleRecord:
        """The record by which the others continue without a node that has left; it may not have written its own."""
        reason = f"node {name} left: {self.view.log(LEFT)[name].get('why', '')}"
        return self.ending(now).next(Kind.LEAVE, reason, lost=[name])

    def advance(self, record: CycleRecord, now: float) -> None:
        """The cycle of this record is the next one."""
        self.clock = (max(record.at, self.job_time(now)), now)
        self.record, self.has_begun, self.evidence, self.request = record, False, "", None
        self.iteration, self.read_until = -1, None
        # Nothing has failed before a JOIN. A check that fails only while ranks train would now find nothing, and this
        # node would take its place, be sick again, and ask for the next restart.
        if record.kind is not Kind.JOIN or not self.may_leave:
            self.health, self.may_leave = None, False
        self.is_suspect = self.is_suspect and not record.gather
        self.sent.clear()
        self.tick = m.Tick(self.tick.contact, self.tick.refused)
        kept = {HOST, LAUNCHERS, key("members", record.base), key("members", record.formed)}
        self.view = View({name: value for name, value in self.view.items() if name in kept})
