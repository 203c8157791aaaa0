"""The driver of one simulated node, and the store that it reaches.

`Store` is torch's TCPStore as the driver uses it: one operation of a launcher after the other, each with a latency, a
reply that may be lost, and cuts. `Launcher` feeds events to the controller's `step` and carries out its actions.
"""

from __future__ import annotations

import json
import random
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance.launcher.control import controller
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.records import FAILURES, Settings
from holdfast.fault_tolerance.stop.rules import (
    COMMIT,
    ENDED,
    NEVER,
    TAKES_PART,
    RankView,
    Word,
    at_boundary,
    position,
)

from .training import SimRank

if TYPE_CHECKING:
    from .world import World

SICK = "GPU 3 is lost"
RETRY = 1.0
"""Seconds after which the store thread of a launcher connects anew."""


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
    no_store: int = 0  # how many cuts there are on the way to the store
    isolated: int = 0  # and the way to the other nodes
    extra_latency: float = 0.0
    oldest_answer: float = 0.0  # seconds that an answer under way may be old
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
        self.node, actions = self.world.controller(self.name).begin(settings, self.clock)
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
        actions = self.world.controller(self.name).step(self.node, event, self.clock)
        self.world.on_step(self, before, event, actions)
        self._carry_out(actions)

    def tick(self) -> m.Tick:
        """What the driver reads at each turn."""
        boards = {}
        for rank in self.ranks:
            group = rank.group
            idle = 0.0 if group.progresses else self.world.now - group.last_step_at
            ended = rank.ended_for, rank.has_raised
            boards[rank.local] = m.Board(group.step, 0, idle, rank.saving, *ended)
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
        return m.Tick(now - self.answered, refused, failed, boards, cpu, blocked, views)

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
                older = [each for each in self.queue if isinstance(each, m.Put) and each.key == action.key]
                kept = [each for each in self.queue if each not in older]
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
                self.ending, self.ranks = False, []
                seconds = uniform(0.02, 0.3) if self.random.random() < 0.7 else uniform(0.3, 3.0)
                world.after(seconds, self._ranks_started, action)
                if world.scenario.sick and (found := self._sick(0.2)):
                    world.after(uniform(0.0, 30.0), self.post, m.Health(action.cycle, found))
            case m.SignalRanks(number, seconds_left):
                self._signal(number, preempts=seconds_left is not None)
            case m.DescribeExit(local):
                if self.random.random() < 0.9:
                    answer = m.ExitDescribed(self.node.record.cycle, local, "it waits for thread 'upload'")
                    world.after(uniform(0.0, 1.0), self.post, answer)
            case m.KillRank(local, _, number=signal.SIGINT):
                if self.random.random() < 0.5:
                    world.after(uniform(0.0, 1.0), self.ranks[local].exit, self.random.choice([0, 0, 0, 3]))
            case m.KillRank(local, _):
                rank = self.ranks[local]
                rank.blocked = rank.blocked or (rank.alive and (self.name, local) in world.blocked)
                if not rank.blocked:
                    world.after(0.01, rank.exit, -signal.SIGKILL)
            case m.HoldVerdicts():
                self.ending = True
            case m.TakeEvidence(trigger, seconds):
                if self.random.random() < 0.9:
                    taken = m.EvidenceTaken(self.node.record.cycle, trigger)
                    world.after(uniform(0.0, 2 * seconds), self.post, taken)
            case m.ReadIteration(cycle):
                if self.random.random() >= world.scenario.unread:
                    world.after(uniform(0.0, 0.2), self._iteration_read, cycle)
                elif self.random.random() < 0.5:
                    world.after(uniform(0.0, 3.0), self.post, m.IterationRead(cycle))
            case m.CheckHealth(cycle):
                world.after(uniform(0.0, 2.0), self.post, m.Health(cycle, self._sick(1.0)))
            case m.Sweep(linger):
                self.sweeps += 1
                is_slow = self.random.random() < 0.1
                wait = min(linger, uniform(0.0, 40.0) if is_slow else uniform(0.0, 0.2))
                wait += uniform(0.5, 3.0) if is_slow else uniform(0.0, 0.05)
                world.after(wait, self._swept, self.sweeps)
            case m.Report():
                self._accuse(action)
                wait = uniform(0.0, 8.0) if self.random.random() < 0.2 else uniform(0.0, 0.1)
                world.after(wait, self.post, m.Reported(self.node.record.cycle))
            case m.WriteStopPages(word):
                self._read_page(word)
            case m.Exit(code, wait):
                self.exiting = code
                if not self.queue or not wait:
                    self.leave(code)
                else:
                    world.after(wait, self._leave_anyway, code)

    def _sick(self, share: float) -> str:
        """What a check finds; "": nothing."""
        if self.world.now < self.world.sick_until.get(self.name, 0.0):
            return SICK
        return SICK if self.random.random() < share * self.world.scenario.sick else ""

    def _accuse(self, action: m.Report) -> None:
        """The report accuses a node, rightly or not; some time later the others can read so."""
        world, record = self.world, action.record
        share = world.scenario.accuses
        if not share or record is None or record.node != self.name or self.random.random() >= share:
            return
        line = {
            "cycle": self.node.record.cycle,
            "kind": "signal",
            "node": self.random.choice(self.node.membership.names),
            "confidence": "high",
            "hardware": self.random.choice(["", "uncorrectable memory error"]),
            "domain": self.random.choice(["", "rack 1"]),
            "step": self.random.randrange(1000),
            "without": self.node.membership.left_out,
            "at": record.at,
        }
        seconds = self.random.choice([0.0, 1.0, 30.0])
        world.after(seconds, self._append, m.Append(FAILURES, json.dumps(line)))
        if line["node"] == self.name and line["hardware"]:
            world.after(seconds, self.post, m.Suspected())

    def _append(self, action: m.Append) -> None:
        if not self.gone:
            self.queue.append(action)
            self._next_operation()

    def _iteration_read(self, cycle: int) -> None:
        self.post(m.IterationRead(cycle, self.world.saved()))

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
        numbers = range(self.world.scenario.ranks)
        self.ranks = [SimRank(self, local, first + local, group) for local in numbers]
        if self.random.random() < self.world.scenario.early_exits:
            self.world.injected_at = self.world.now
            self.ranks[0].exit(1, m.Cause.OWN, "ImportError: injected")  # before the last one was started
        self.post(m.Started())
        if self.name in self.world.sick_in_training:
            self.world.after(5.0, self.post, m.Health(action.cycle, SICK))
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
                continue  # continues to the step that is agreed on
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
            wait = self.random.uniform(0.0, self.world.scenario.step_time)
            self.world.after(wait, self._at_boundary, rank, word)

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
                group.steps()
                group.hold = place + 1  # a rank waits there for the rest
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
