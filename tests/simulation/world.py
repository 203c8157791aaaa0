"""A simulated job: the real node controllers, with a virtual clock, a simulated store, and scripted ranks.

`World` owns the clock. `Store` is torch's TCPStore as the driver uses it; each node reaches it through a `Link` with a
latency, lost replies and cuts. `Launcher` is the driver of one node: it feeds events to `step` and carries out actions.
`Group` is the training of one cycle: it makes progress while all its ranks can reach each other.

Everything random comes from the seed, for each node from a stream of its own, so that leaving out one fault changes as
little as possible. Does not cover: signals, processes and sockets, which the tests with real processes cover.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.fault_tolerance.launcher.control import controller
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.node import Settings
from holdfast.fault_tolerance.launcher.control.records import Member, Membership
from holdfast.fault_tolerance.stop.notes import COMMIT, Word
from holdfast.fault_tolerance.stop.positions import position
from holdfast.fault_tolerance.stop.rules import ENDED, NEVER, TAKES_PART, RankView, at_boundary

HANG_LIMIT = 8.0
"""Seconds without progress after which the simulated monitor ends a rank."""
RETRY = 1.0
"""Seconds after which the store thread of a launcher connects anew."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Scenario:
    """What a seed stands for."""

    seed: int
    nodes: int  # launchers at the start
    least: int
    most: int
    ranks: int  # on each node
    max_restarts: int
    total: float  # seconds of training that the job takes
    faults: list[tuple[float, str, tuple[Any, ...]]]  # time, name of a method of `World`, its arguments
    mode: str = "gloo"  # "nccl": ranks that lost a peer hang
    pages: bool = False  # the ranks take part in agreed stops
    latency: float = 0.002
    reset: bool = False
    early_exits: float = 0.0  # share of starts in which a rank ends before the last one was started
    stop_timeout: float = 5.0
    step_time: float = 0.2
    node_timeout: float = 5.0
    limit: float = 400.0  # seconds at which every launcher has to have ended

    @property
    def is_alone(self) -> bool:
        """A job of one node that no other could join."""
        return self.nodes == self.most == 1

    @property
    def healed(self) -> float:
        """When the last fault is over."""
        return max(
            (at + (args[1] if name in LASTING else 0.0) for at, name, args in self.faults), default=0.0
        )


LASTING = {"suspend", "freeze", "cut", "isolate", "slow"}
"""Faults whose second argument is how long they last."""


class Store:
    """The job's store; `host` is the launcher that serves it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.values: dict[str, str] = {}
        self.watchers: dict[str, dict[Launcher, None]] = {}
        self.host: Launcher | None = None

    def write(self, key: str, value: str) -> None:
        """The value of the key changes."""
        if self.values.get(key) == value:
            return
        self.world.on_write(key, self.values.get(key), value)
        self.values[key] = value
        for launcher in list(self.watchers.get(key, ())):
            launcher.read_later(key)

    def apply(self, action: m.Cas | m.Put | m.Append) -> str:
        """Carry out an operation; returns the standing value."""
        match action:
            case m.Cas(key, old, new):
                if self.values.get(key, "") == old:
                    self.write(key, new)
                return self.values.get(key, old)
            case m.Put(key, value):
                self.write(key, value)
            case m.Append(key, line):
                self.write(key, self.values.get(key, "") + line + "\n")
        return ""

    @property
    def refuses(self) -> bool:
        """The host's process is gone."""
        return self.host is not None and self.host.gone and not self.host.powered_off

    @property
    def silent(self) -> bool:
        """Nothing answers at the host."""
        return self.host is not None and (self.host.suspended or self.host.powered_off)


@dataclass
class SimRank:
    """A training process."""

    launcher: Launcher
    local: int
    number: int
    group: Group
    alive: bool = True
    saving: bool = False
    blocked: bool = False  # in state D
    stopped_at: int | None = None  # by an agreed stop
    answered: int = 0
    yes: bool = False

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a disk: neither a signal nor its own end comes through."""
        return (self.launcher.name, self.local) in self.launcher.world.blocked

    def exit(self, status: int, cause: m.Cause = m.Cause.OWN, text: str = "") -> None:
        """The process ends."""
        if not self.alive or self.is_blocked:
            return
        self.alive = False
        self.group.lost(self, status)
        text = text or f"ended with {status}"
        self.launcher.post(m.RankExited(self.local, status, cause, text), fresh=True)


class Group:
    """The ranks of one cycle."""

    def __init__(self, world: World, cycle: int, membership: Membership, where: tuple[str, int]) -> None:
        self.world, self.cycle, self.membership, self.where = world, cycle, membership, where
        self.ranks: list[SimRank] = []
        self.base = self.world.checkpoint
        self.done = 0.0  # seconds of training since then
        self.since: float | None = None  # progress is counted since
        self.able_since = 0.0  # and has not paused since
        self.broken = self.finished = False
        self.last_step_at = world.now
        self.pauses = 0
        self.hold: int | None = None  # a rank waits at this step of this cycle, in an agreed stop

    @property
    def nodes(self) -> set[Launcher]:
        """The nodes that its ranks are on."""
        return {rank.launcher for rank in self.ranks}

    def steps(self) -> int:
        """Steps of this cycle."""
        if self.since is not None:
            self.done += self.world.now - self.since
            self.since = self.world.now
        count = int(self.done / self.world.scenario.step_time)
        return count if self.hold is None else min(count, self.hold)

    @property
    def step(self) -> int:
        """The step that the ranks report."""
        step = self.base + self.steps()
        self.world.best = max(self.world.best, step)
        return step

    @property
    def progresses(self) -> bool:
        """Whether its ranks train."""
        return self.since is not None and not self.broken

    def joined(self, rank: SimRank) -> None:
        """A rank has connected to the ranks' store."""
        self.ranks.append(rank)
        self.check()

    def check(self) -> None:
        """Progress begins, pauses and ends with the ranks and the nodes that they are on."""
        complete = len(self.ranks) == self.membership.world_size and all(
            rank.alive and not rank.is_blocked for rank in self.ranks
        )
        able = complete and not self.broken and not any(node.stands_still for node in self.nodes)
        if able and self.since is None:
            self.since = self.able_since = self.world.now
            self.pauses += 1
            left = self.world.scenario.total - self.base * self.world.scenario.step_time - self.done
            self.world.after(max(0.0, left), self._finish, self.pauses)
        elif not able and self.since is not None:
            self.steps()
            self.since, self.last_step_at = None, self.world.now
            self.pauses += 1
        if not able and self.ranks:
            self.world.after(HANG_LIMIT, self._hang, self.pauses)

    def _finish(self, pauses: int) -> None:
        if self.pauses != pauses or self.hold is not None:
            return
        self.step  # noqa: B018 - notes the best step
        self.finished = True
        self.world.finished = True
        for rank in self.ranks:
            self.world.after(rank.launcher.random.uniform(0.0, 0.3), rank.exit, 0)

    def _hang(self, pauses: int) -> None:
        if self.pauses != pauses or self.since is not None or self.finished:
            return
        for node in sorted(self.nodes, key=lambda node: node.name):
            rank = next((rank for rank in node.ranks if rank.alive and rank.group is self), None)
            if rank is None or node.stands_still or node.gone or node.ending:
                continue
            node.post(m.Verdict(rank.local, "hung"))
            self.world.after(0.05, rank.exit, -signal.SIGKILL)

    def lost(self, rank: SimRank, status: int) -> None:
        """A rank has ended: its peers lose the connection, unless all are done."""
        if self.finished and status == 0:
            return
        if self.broken:
            return
        self.step  # noqa: B018
        self.broken = True
        self.check()
        if self.world.scenario.mode == "gloo" and not rank.launcher.powered_off:
            for peer in self.ranks:
                if peer.alive and not peer.launcher.gone:
                    text = "ConnectionError: lost a peer"
                    wait = peer.launcher.random.uniform(0.005, 0.3)
                    self.world.after(wait, peer.exit, 1, m.Cause.LOST_PEER, text)


@dataclass(eq=False)
class Launcher:
    """One node: the controller and its driver."""

    world: World
    name: str
    is_host: bool
    random: random.Random = field(repr=False, default_factory=random.Random)
    started: float = 0.0
    node: Any = None
    ranks: list[SimRank] = field(default_factory=list)
    gone: bool = False  # the launcher's process has ended
    powered_off: bool = False
    suspended: bool = False  # the launcher's process is stopped
    frozen: bool = False  # and all of its node
    suspended_for: float = 0.0  # seconds in all
    no_store: int = 0  # the way to the store is cut so many times over
    isolated: int = 0  # and the way to the other nodes
    extra_latency: float = 0.0
    oldest_answer: float = 0.0  # an answer that is under way may be so many seconds old
    exit_code: int | None = None
    exited_at: float = 0.0
    touched: set[str] = field(default_factory=set)  # what happened to it
    inbox: deque[tuple[m.Event, bool]] = field(default_factory=deque)
    queue: deque[m.Cas | m.Put | m.Append] = field(default_factory=deque)
    busy: bool = False
    watched: dict[str, float] = field(default_factory=dict)
    reading: set[str] = field(default_factory=set)
    delivered: dict[str, str] = field(default_factory=dict)
    answered: float = 0.0  # when the store last did
    tick_at: float = -1.0
    operations: float = 0.0
    polled_since: float = 0.0
    ending: bool = False  # the monitor gives no verdicts
    cycle: int = -1
    port: int = 0
    unreached_at: float = -1e9
    rank_store: str = ""  # why it could not be opened
    rank_store_cycle: int = -1
    sweeps: int = 0
    exiting: int | None = None
    trace: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=400))

    def __post_init__(self) -> None:
        self.offset = self.random.uniform(0.0, 1e6)
        self.started = self.answered = self.world.now

    def __hash__(self) -> int:
        return id(self)

    @property
    def clock(self) -> float:
        """This node's monotonic clock, without the time in which it was suspended."""
        return self.world.now + self.offset - self.suspended_for

    @property
    def stands_still(self) -> bool:
        """Its ranks cannot take part in a collective."""
        return self.frozen or self.powered_off or self.isolated > 0

    @property
    def alive(self) -> bool:
        """The launcher runs."""
        return not self.gone and not self.suspended

    def begin(self, settings: Settings) -> None:
        """Start the launcher."""
        self.node, actions = controller.begin(settings, self.clock)
        self._carry_out(actions)

    # -- events -----------------------------------------------------------------------------------------------

    def post(self, event: m.Event, *, fresh: bool = False) -> None:
        """An event for the controller; `fresh`: with the boards as they are now."""
        if self.gone:
            return
        if self.suspended:
            self.inbox.append((event, fresh))
            return
        if fresh:
            self._step(self.tick())
        if not self.gone:
            self._step(event)

    def _step(self, event: m.Event) -> None:
        if self.gone:
            return
        if not isinstance(event, m.Tick):
            self.trace.append((self.world.now, f"<- {event}"))
        before = type(self.node.phase)
        actions = controller.step(self.node, event, self.clock)
        self.world.on_step(self, before, event, actions)
        self._carry_out(actions)

    def tick(self) -> m.Tick:
        """What the driver reads at each turn."""
        boards = {}
        for rank in self.ranks:
            group = rank.group
            idle = 0.0 if group.progresses else self.world.now - group.last_step_at
            boards[rank.local] = m.Board(group.step, 0, idle, rank.saving)
        now, latency = self.world.now, max(self.latency, self.oldest_answer)
        if not self._reaches:
            self.unreached_at = now
        if now - self.unreached_at > latency:
            self.answered = max(self.answered, now - latency)  # the regular reads
        blocked = frozenset(rank.local for rank in self.ranks if rank.blocked and rank.alive)
        cpu = 1.0 if any(rank.group.progresses for rank in self.ranks) else 0.0
        views = tuple(self._view(rank) for rank in self.ranks) if self.world.scenario.pages else ()
        host = self.world.store.host
        is_refused = self.world.store.refuses and host is not None and now - host.exited_at > 2.0
        refused = "no process listens at the store's address" if is_refused else ""
        failed = self.rank_store if self.node.record.cycle == self.rank_store_cycle else ""
        return m.Tick(now - self.answered, self.latency, refused, failed, boards, cpu, blocked, views)

    def _view(self, rank: SimRank) -> RankView:
        group = rank.group
        place = position(rank.stopped_at if rank.stopped_at is not None else group.steps())
        state = NEVER if len(group.ranks) < group.membership.world_size else TAKES_PART
        if group.finished:
            state = ENDED
        return RankView(rank.number, state, place, place, rank.answered, rank.yes, not rank.alive)

    def _on_tick(self, at: float) -> None:
        if self.gone or self.tick_at != at:
            return
        self.tick_at = -1.0
        if self.suspended:
            return  # resumed with one
        self._step(self.tick())

    def resume(self, seconds: float) -> None:
        """The launcher runs again."""
        self.suspended = False
        self.suspended_for += seconds
        if self.exiting is not None:
            self.leave(self.exiting)
            return
        waiting, self.inbox = self.inbox, deque()
        for event, fresh in waiting:
            self.post(event, fresh=fresh)
        if not self.gone:
            self._step(self.tick())
        for key in list(self.watched):
            self.read_later(key)
        self._next_operation()

    # -- the store ----------------------------------------------------------------------------------------------

    @property
    def latency(self) -> float:
        """Seconds of a round trip."""
        return self.world.scenario.latency + self.extra_latency

    @property
    def _reaches(self) -> bool:
        store = self.world.store
        is_host = store.host is self
        return not store.refuses and not store.silent and (is_host or not (self.no_store or self.isolated))

    def _next_operation(self) -> None:
        """The store thread: one operation after the other."""
        if self.busy or not self.queue or not self.alive:
            return
        self.busy = True
        trip = self.latency * self.random.uniform(0.5, 1.5)
        self.world.after(trip / 2, self._arrives, self.queue[0], trip)

    def _arrives(self, action: m.Cas | m.Put | m.Append, trip: float) -> None:
        if self.gone:
            return
        if not self._reaches or self.suspended:
            self.world.after(RETRY, self._try_again)
            return
        standing = self.world.store.apply(action)
        self.operations += 1
        self.world.on_operation(self.name, action.key, is_write=True)
        if self.random.random() < self.world.lost_replies:
            self.world.after(RETRY, self._try_again)  # the reply is lost, the operation is carried out again
            return
        self.world.after(trip / 2, self._replied, action, standing)

    def _try_again(self) -> None:
        self.busy = False
        self._next_operation()

    def _replied(self, action: m.Cas | m.Put | m.Append, standing: str) -> None:
        self.busy = False
        if self.gone:
            return
        if self.suspended or self.no_store or self.isolated:
            self.busy = True
            self.world.after(RETRY, self._try_again)
            return
        self.answered = self.world.now
        if self.queue and self.queue[0] is action:
            self.queue.popleft()
        if isinstance(action, m.Cas):
            self.delivered[action.key] = standing
            self.post(m.StoreView(action.key, standing))
        if self.exiting is not None and not self.queue:
            self.leave(self.exiting)
        self._next_operation()

    def read_later(self, key: str) -> None:
        """A watched key has changed: the next read of it finds that."""
        if key in self.reading or key not in self.watched:
            return
        self.reading.add(key)
        wait = self.random.uniform(0.0, self.watched[key]) + self.latency
        self.world.after(wait, self._read, key)

    def _read(self, key: str) -> None:
        self.reading.discard(key)
        if self.gone or key not in self.watched or self.suspended:
            return
        if not self._reaches:
            self.reading.add(key)
            self.world.after(RETRY, self._read_again, key)
            return
        self.answered = self.world.now
        value = self.world.store.values.get(key, "")
        if self.delivered.get(key) != value:
            self.delivered[key] = value
            self.world.on_operation(self.name, key, is_write=False)
            self.post(m.StoreView(key, value))

    def _read_again(self, key: str) -> None:
        self.reading.discard(key)
        self.read_later(key)

    def _watch(self) -> None:
        wanted = dict(controller.watched_keys(self.node))
        if wanted == self.watched:
            return
        self.count_reads()
        store = self.world.store
        for key in self.watched.keys() - wanted.keys():
            store.watchers[key].pop(self, None)
        new = [key for key in wanted if key not in self.watched]
        self.watched = wanted
        for key in new:
            store.watchers.setdefault(key, {})[self] = None
            self.delivered.pop(key, None)
            self.reading.add(key)
            self.world.after(self.latency * self.random.uniform(1.0, 1.5), self._read, key)

    def count_reads(self) -> None:
        """Reads since the watched keys changed; keys that exist and are read at one interval are one operation."""
        seconds, self.polled_since = self.world.now - self.polled_since, self.world.now
        present = {each for key, each in self.watched.items() if key in self.world.store.values}
        absent = [each for key, each in self.watched.items() if key not in self.world.store.values]
        self.operations += seconds * sum(1 / each for each in (*present, *absent))

    # -- actions ------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[m.Action]) -> None:
        for action in actions:
            if self.gone:
                return
            if not isinstance(action, m.Put):
                self.trace.append((self.world.now, f"   {action}"))
            self._act(action)
        if self.gone:
            return
        self._watch()
        due = controller.next_deadline(self.node)
        if due is not None:
            at = max(self.world.now + 0.01, min(due - self.offset, self.world.now + 1.0))
            if self.tick_at < 0 or at < self.tick_at - 1e-9:
                self.tick_at = at
                self.world.at(at, self._on_tick, at)

    def _act(self, action: m.Action) -> None:
        world, uniform = self.world, self.random.uniform
        match action:
            case m.Cas() | m.Append():
                self.queue.append(world.skewed(self, action))
                self._next_operation()
            case m.Put():
                kept = [
                    each for each in self.queue if not (isinstance(each, m.Put) and each.key == action.key)
                ]
                if self.busy and self.queue and self.queue[0] not in kept:
                    kept.insert(0, self.queue[0])
                self.queue = deque([*kept, action])
                self._next_operation()
            case m.OpenRankStore(cycle):
                if self.name in world.broken_rank_store:
                    self.rank_store, self.rank_store_cycle = "no port is free", cycle
                    return
                self.port = next(world.ports)
                world.after(uniform(0.001, 0.05), self.post, m.RankStoreOpen(cycle, self.name, self.port))
            case m.StartRanks():
                world.began.setdefault(action.cycle, world.now)
                world.on_start(self, action)
                self.ending = False
                seconds = uniform(0.02, 0.3) if self.random.random() < 0.7 else uniform(0.3, 3.0)
                world.after(seconds, self._ranks_started, action)
            case m.SignalRanks(number, seconds_left):
                self._signal(number, preempts=seconds_left is not None)
            case m.KillRank(local, _):
                rank = self.ranks[local]
                rank.blocked = rank.blocked or (rank.alive and (self.name, local) in world.blocked)
                if not rank.blocked:
                    world.after(0.01, rank.exit, -signal.SIGKILL)
            case m.HoldVerdicts():
                self.ending = True
            case m.TakeEvidence(_, seconds):
                if self.random.random() < 0.9:
                    world.after(uniform(0.0, 2 * seconds), self.post, m.EvidenceTaken())
            case m.Sweep(linger):
                self.sweeps += 1
                is_slow = self.random.random() < 0.1
                wait = min(linger, uniform(0.0, 40.0) if is_slow else uniform(0.0, 0.2))
                world.after(
                    wait + (uniform(0.5, 3.0) if is_slow else uniform(0.0, 0.05)), self._swept, self.sweeps
                )
            case m.WriteStopPages(word):
                self._read_page(word)
            case m.Exit(code, wait):
                self.exiting = code
                if not self.queue or not wait:
                    self.leave(code)
                else:
                    world.after(wait, self._leave_anyway, code)

    def _swept(self, number: int) -> None:
        if number == self.sweeps:
            self.post(m.Swept())

    def _leave_anyway(self, code: int) -> None:
        if not self.gone and not self.suspended:
            self.leave(code)

    def _ranks_started(self, action: m.StartRanks) -> None:
        if self.gone:
            return
        if self.name in self.world.cannot_start:
            self.post(m.Started("no process can be started"))
            return
        self.cycle = action.cycle
        group = self.world.group(action.cycle, action.membership, (action.address, action.port))
        first = action.membership.first_rank(self.name)
        self.ranks = [
            SimRank(self, local, first + local, group) for local in range(self.world.scenario.ranks)
        ]
        if self.random.random() < self.world.scenario.early_exits:
            self.ranks[0].exit(1, m.Cause.OWN, "ImportError: injected")  # before the last one was started
        self.post(m.Started())
        for rank in self.ranks:
            self.world.after(self.random.uniform(0.01, 0.2), self._join, rank)

    def _join(self, rank: SimRank) -> None:
        if rank.alive:
            rank.group.joined(rank)
            if rank.group.broken:
                rank.group.check()

    def _signal(self, number: int, *, preempts: bool) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        for rank in self.ranks:
            if not rank.alive or rank.saving:
                continue
            if (self.name, rank.local) in self.world.blocked:
                continue  # waits for a disk
            how = self.random.random()
            agreed = self.world.scenario.pages and preempts and rank.group.progresses
            if agreed:
                continue  # goes on to the step that is agreed on
            if how < 0.2 and preempts:
                rank.saving = True
                self.world.after(self.random.uniform(0.5, 4.0), self._saved, rank)
            elif how < 0.9:
                self.world.after(self.random.uniform(0.0, 0.1), rank.exit, -number)
            elif how < 0.95:
                rank.saving = True
                self.world.after(self.random.uniform(1.0, 10.0), self._saved, rank)
            # else: ignores it

    def _saved(self, rank: SimRank) -> None:
        rank.saving = False
        rank.exit(0)

    def _read_page(self, word: Word) -> None:
        """The ranks read the newest word at their next boundary."""
        for rank in self.ranks:
            self.world.after(
                self.random.uniform(0.0, self.world.scenario.step_time), self._at_boundary, rank, word
            )

    def _at_boundary(self, rank: SimRank, word: Word) -> None:
        group = rank.group
        if not rank.alive or word.number < rank.answered:
            return
        here = group.steps()
        place = word.place >> 24
        if not word.final:
            yes, _ = at_boundary(position(here), position(here), word.place, committed=False)
            rank.answered, rank.yes = word.number, yes
            if yes:
                self.world.hold(group, word.number, place + 1)
        elif word.kind == COMMIT:
            wait = max(0.0, (place + 1 - here) * self.world.scenario.step_time)
            self.world.after(wait + 0.05, self._stop_at, rank)
        else:
            group.hold = None
            self.world.after(0.05, rank.exit, -signal.SIGTERM)

    def _stop_at(self, rank: SimRank) -> None:
        if rank.alive:
            rank.stopped_at = rank.group.steps()
            rank.group.finished = True
            self.world.on_agreed(rank)
            self.world.after(0.1, rank.exit, 0)

    def leave(self, code: int) -> None:
        """The launcher ends."""
        self.gone, self.exit_code, self.exited_at = True, code, self.world.now
        self.world.on_exit(self)
        self.release()

    def release(self) -> None:
        """It watches nothing any more."""
        self.count_reads()
        for key in self.watched:
            self.world.store.watchers[key].pop(self, None)
        self.watched = {}


class World:
    """The clock, the nodes and their faults; what holds is checked in :mod:`.invariants`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.ports = itertools.count(20000)
        self.store = Store(self)
        self.launchers: list[Launcher] = []
        self.groups: dict[tuple[int, str, int], Group] = {}
        self.checkpoint = 0
        self.best = 0
        self.finished = False
        self.blocked: set[tuple[str, int]] = set()
        self.cannot_start: set[str] = set()
        self.broken_rank_store: set[str] = set()
        self.lost_replies = 0.0
        self.skew: set[str] = set()
        self.steps = 0
        self.began: dict[int, float] = {}  # when the first node started its ranks, by cycle
        self.agreed: dict[int, set[int]] = {}

    # -- the clock ------------------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call at this time."""
        heapq.heappush(self._events, (when, next(self._order), call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call in so many seconds."""
        self.at(self.now + seconds, call, *args)

    def run(self) -> None:
        """From the start of the job to the end of all launchers, or to the limit."""
        for index in range(self.scenario.nodes):
            delay = (
                0.0 if index == 0 else random.Random(f"{self.scenario.seed} start {index}").uniform(0.0, 1.0)
            )
            self.after(delay, self.launch, index == 0)
        for when, name, args in self.scenario.faults:
            self.at(when, self._fault, name, args)
        while self._events:
            when, _, call, args = heapq.heappop(self._events)
            if when > self.scenario.limit:
                break
            self.now = when
            call(*args)
            if (
                self.launchers
                and len(self.launchers) >= self.scenario.nodes
                and all(x.gone for x in self.launchers)
            ):
                break
        self.on_end()

    def _fault(self, name: str, args: tuple[Any, ...]) -> None:
        getattr(self, name)(*args)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def launch(self, is_host: bool = False) -> None:
        """A launcher starts."""
        scenario, number = self.scenario, len(self.launchers)
        name = f"n{number}"
        if not is_host and (scenario.is_alone or self.store.refuses or self.finished):
            return
        launcher = Launcher(self, name, is_host, random.Random(f"{scenario.seed} {name}"))
        self.launchers.append(launcher)
        if is_host:
            self.store.host = launcher
        settings = Settings(
            me=Member(name, scenario.ranks, name, -1),
            least=scenario.least,
            most=scenario.most,
            is_host=is_host,
            is_alone=scenario.is_alone,
            max_restarts=scenario.max_restarts,
            reset_on_progress=scenario.reset,
            node_timeout=scenario.node_timeout,
            join_timeout=300.0,
            last_call=3.0,
            term_timeout=20.0,
            stop_timeout=scenario.stop_timeout,
            preempted_code=75,
        )
        launcher.begin(settings)

    def group(self, cycle: int, membership: Membership, where: tuple[str, int]) -> Group:
        """The training of a cycle; it goes on from the last checkpoint."""
        key = (cycle, *where)
        if key not in self.groups:
            self.checkpoint = self.best // 10 * 10
            self.groups[key] = Group(self, cycle, membership, where)
        return self.groups[key]

    def hold(self, group: Group, number: int, place: int) -> None:
        """A rank waits at this place for the rest."""
        group.steps()
        group.hold = place

    def skewed(self, launcher: Launcher, action: m.Cas | m.Append) -> m.Cas | m.Append:
        """A launcher of another version writes fields that this one does not have."""
        if launcher.name not in self.skew:
            return action
        if isinstance(action, m.Cas) and action.key.startswith("cycle/"):
            return replace(action, new=json.dumps({**json.loads(action.new), "since_9_9": ["unheard of"]}))
        if isinstance(action, m.Append):
            return replace(action, line=json.dumps({**json.loads(action.line), "since_9_9": 1}))
        return action

    def _pick(self, index: int) -> Launcher | None:
        running = [launcher for launcher in self.launchers if not launcher.gone]
        return running[index % len(running)] if running else None

    # -- faults ---------------------------------------------------------------------------------------------------

    def kill_rank(self, index: int, local: int) -> None:
        """A rank dies by its own fault."""
        if (node := self._pick(index)) and node.ranks:
            rank = node.ranks[local % len(node.ranks)]
            rank.exit(1, m.Cause.OWN, "RuntimeError: injected")

    def hang_rank(self, index: int) -> None:
        """A rank makes no progress."""
        if (node := self._pick(index)) and node.ranks and node.ranks[0].group.progresses:
            group = node.ranks[0].group
            group.steps()
            group.since, group.last_step_at = None, self.now
            group.pauses += 1
            self.after(HANG_LIMIT, group._hang, group.pauses)

    def power_off(self, index: int) -> None:
        """A node vanishes without a word."""
        if node := self._pick(index):
            self._vanish(node, powered_off=True)

    def kill_launcher(self, index: int) -> None:
        """SIGKILL of a launcher: its ranks end with it."""
        if node := self._pick(index):
            self._vanish(node, powered_off=False)

    def _vanish(self, node: Launcher, *, powered_off: bool) -> None:
        node.touched.add("vanished")
        node.gone, node.exited_at = True, self.now
        node.powered_off = powered_off
        node.release()
        for rank in node.ranks:
            if rank.alive:
                rank.alive = False
                rank.group.lost(rank, -9)
                rank.group.check()

    def massacre(self, survivors: int) -> None:
        """Nearly all launchers vanish within a second; the host stays."""
        for node in [node for node in self.launchers if not node.gone and not node.is_host][survivors:]:
            self.after(node.random.uniform(0.0, 1.0), self._vanish_later, node)

    def _vanish_later(self, node: Launcher) -> None:
        if not node.gone:
            self._vanish(node, powered_off=node.random.random() < 0.5)

    def suspend(self, index: int, seconds: float) -> None:
        """SIGSTOP of a launcher; its ranks train on."""
        self._stand_still(index, seconds, frozen=False)

    def freeze(self, index: int, seconds: float) -> None:
        """A whole node stands still."""
        self._stand_still(index, seconds, frozen=True)

    def _stand_still(self, index: int, seconds: float, *, frozen: bool) -> None:
        node = self._pick(index)
        if node is None or node.suspended:
            return
        node.touched.add("suspended")
        node.suspended, node.frozen = True, frozen
        self._recheck(node)
        self.after(seconds, self._go_on, node, seconds)

    def _go_on(self, node: Launcher, seconds: float) -> None:
        if node.gone:
            return
        node.frozen = False
        self._recheck(node)
        node.resume(seconds)

    def cut(self, index: int, seconds: float) -> None:
        """The way from a node to the store is cut."""
        if (node := self._pick(index)) and not node.is_host:
            node.touched.add("cut")
            node.no_store += 1
            self.after(seconds, self._mend, node, "no_store")

    def isolate(self, index: int, seconds: float) -> None:
        """A node reaches no other node."""
        if (node := self._pick(index)) and not node.is_host:
            node.touched.add("cut")
            node.isolated += 1
            self._recheck(node)
            self.after(seconds, self._mend, node, "isolated")

    def _mend(self, node: Launcher, what: str) -> None:
        setattr(node, what, getattr(node, what) - 1)
        if not node.gone:
            self._recheck(node)

    def slow(self, index: int, seconds: float, delay: float) -> None:
        """Each operation of a node takes longer."""
        if node := self._pick(index):
            node.touched.add("slow")
            node.extra_latency = node.oldest_answer = delay
            self.after(seconds, setattr, node, "extra_latency", 0.0)
            self.after(seconds + 2 * delay, setattr, node, "oldest_answer", 0.0)

    def _recheck(self, node: Launcher) -> None:
        for group in {id(rank.group): rank.group for rank in node.ranks if rank.alive}.values():
            group.check()

    def sigterm(self, index: int, number: int = int(signal.SIGTERM)) -> None:
        """A signal to one launcher."""
        if node := self._pick(index):
            node.touched.add("signalled")
            node.post(m.Signal(number))

    def sigterm_all(self, spread: float) -> None:
        """The scheduler preempts the job."""
        for node in self.launchers:
            if not node.gone:
                node.touched.add("signalled")
                self.after(node.random.uniform(0.0, spread), node.post, m.Signal(int(signal.SIGTERM)))

    def request(self, index: int, action: str) -> None:
        """A rank asks for something."""
        if (node := self._pick(index)) and node.ranks and node.ranks[0].alive:
            if action == "exclude_this_node":
                node.touched.add("excluded")
            node.post(m.Requested(node.ranks[0].number, action, "asked for by the simulation"))

    def block_rank(self, index: int) -> None:
        """A rank waits for a disk, and even SIGKILL does not end it."""
        if (node := self._pick(index)) and node.ranks and not node.ranks[0].group.finished:
            self.blocked.add((node.name, 0))
            node.ranks[0].group.check()
            node.touched.add("blocked")
            self.kill_rank(index, 1)

    def break_start(self, index: int) -> None:
        """A node can start no processes."""
        if node := self._pick(index):
            node.touched.add("cannot start")
            self.cannot_start.add(node.name)
            if node.ranks:
                node.ranks[0].exit(1, m.Cause.OWN, "injected")

    def break_rank_store(self, index: int) -> None:
        """A node can open no store for the ranks."""
        if node := self._pick(index):
            self.broken_rank_store.add(node.name)
            node.touched.add("cannot start")
            self.kill_rank(index, 0)

    def lose_replies(self, share: float) -> None:
        """So many replies of the store get lost."""
        self.lost_replies = share

    def other_version(self, index: int) -> None:
        """A launcher of another version."""
        if node := self._pick(index):
            self.skew.add(node.name)

    # -- hooks of the invariants ------------------------------------------------------------------------------------

    def on_write(self, key: str, old: str | None, new: str) -> None:
        """A key of the store changes."""

    def on_operation(self, node: str, key: str, *, is_write: bool) -> None:
        """A node has written a key, or read a value of it that is new."""

    def on_step(self, launcher: Launcher, before: type, event: m.Event, actions: list[m.Action]) -> None:
        """A controller took a step."""

    def on_start(self, launcher: Launcher, action: m.StartRanks) -> None:
        """A node starts its ranks."""

    def on_agreed(self, rank: SimRank) -> None:
        """A rank has stopped at an agreed place."""

    def on_exit(self, launcher: Launcher) -> None:
        """A launcher ends."""

    def on_end(self) -> None:
        """The simulation is over."""
