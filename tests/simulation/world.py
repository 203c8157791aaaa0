"""A simulated job: the real node controllers, with a virtual clock, a simulated store, and scripted ranks.

`World` owns the clock, the nodes and their faults. Everything random comes from the seed, for each node from a stream
of its own, so that leaving out one fault changes as little as possible.
Does not cover: signals, processes and sockets, which the tests with real processes cover.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.fault_tolerance.launcher.control import controller
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.records import Member, Membership, Settings

from .launcher import SICK, Launcher, Store
from .training import HANG_LIMIT, Group, SimRank


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
    slow_exits: float = 0.0  # share of the ranks whose process stays after a good end
    exit_timeout: float = 10.0
    finished_timeout: float = m.NEVER
    early_exits: float = 0.0  # share of starts in which a rank ends before the last one was started
    stop_timeout: float = 5.0
    step_time: float = 0.2
    node_timeout: float = 5.0
    limit: float = 400.0  # seconds at which every launcher has to have ended
    most_stalled: int = 0  # failed cycles in a row without a new checkpoint that end the job; 0: never
    bug_at: int = 0  # the step at which a rank raises, each time that the job comes to it; 0: never
    same_failure_limit: int = 0  # so often in a row it ends the job; 0: never
    accuses: float = 0.0  # share of failures whose report accuses a node, rightly or not
    exclude_suspects: bool = False
    sick: float = 0.0  # share of checks of a node that find it sick; 0: nodes are not checked
    exclude_sick: bool = False
    unread: float = 0.0  # share of readings of the last checkpoint's iteration that find no number in time

    @property
    def is_alone(self) -> bool:
        """A job of one node that no other could join."""
        return self.nodes == self.most == 1

    @property
    def healed(self) -> float:
        """When the last fault is over."""
        ends = [at + (args[1] if name in LASTING else 0.0) for at, name, args in self.faults]
        return max(ends, default=0.0)


NO_RESTART = 42
"""Exit code of a job without progress, or with one failure again and again."""
LASTING = {"suspend", "freeze", "cut", "isolate", "slow", "sicken"}
"""Faults whose second argument is how long they last."""


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
        self.sick_until: dict[str, float] = {}
        self.sick_in_training: set[str] = set()
        self.lost_replies = 0.0
        self.skew: set[str] = set()
        self.steps = 0
        self.injected_at = 0.0  # when a rank last ended while others were started
        self.began: dict[int, float] = {}  # when the first node started its ranks, by cycle
        self.agreed: dict[int, set[int]] = {}

    # -- the clock ------------------------------------------------------------------------------------------------

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call at this time."""
        heapq.heappush(self._events, (when, next(self._order), call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call after `seconds`."""
        self.at(self.now + seconds, call, *args)

    def run(self) -> None:
        """From the start of the job to the end of all launchers, or to the limit."""
        for index in range(self.scenario.nodes):
            delay = random.Random(f"{self.scenario.seed} start {index}").uniform(0.0, 1.0)
            self.after(delay if index else 0.0, self.launch, index == 0)
        for when, name, args in self.scenario.faults:
            self.at(when, self._fault, name, args)
        while self._events:
            when, _, call, args = heapq.heappop(self._events)
            if when > self.scenario.limit:
                break
            self.now = when
            call(*args)
            if len(self.launchers) >= self.scenario.nodes and all(each.gone for each in self.launchers):
                break
        self.on_end()

    def _fault(self, name: str, args: tuple[Any, ...]) -> None:
        getattr(self, name)(*args)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def controller(self, name: str) -> Any:
        """`begin` and `step` of the controller of this launcher."""
        return controller

    def launch(self, is_host: bool = False) -> None:
        """A launcher starts."""
        scenario, number = self.scenario, len(self.launchers)
        kinds = {kind for _, kind, _ in scenario.faults}
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
            exit_timeout=scenario.exit_timeout,
            finished_timeout=scenario.finished_timeout,
            preempted_code=75,
            iteration_file="/checkpoints/latest" if scenario.most_stalled else "",
            most_stalled=scenario.most_stalled,
            same_failure_limit=scenario.same_failure_limit,
            exclude_suspects=scenario.exclude_suspects,
            checks_health=not scenario.is_alone
            and (scenario.sick > 0 or bool(kinds & {"sicken", "overheat"})),
            exclude_sick=scenario.exclude_sick,
            no_restart_code=NO_RESTART,
        )
        launcher.begin(settings)

    def group(self, cycle: int, membership: Membership, where: tuple[str, int]) -> Group:
        """The training of a cycle; it resumes from the last checkpoint."""
        key = (cycle, *where)
        if key not in self.groups:
            self.checkpoint = self.best // 10 * 10
            self.groups[key] = Group(self, cycle, membership, where)
        return self.groups[key]

    def saved(self) -> int:
        """The iteration of the last checkpoint: each tenth step is saved."""
        for group in self.groups.values():
            group.step  # noqa: B018 - notes the best step
        return self.best // 10 * 10

    def skewed(self, launcher: Launcher, action: m.Cas | m.Append) -> m.Cas | m.Append:
        """A launcher of another version writes fields that this one does not have."""
        if launcher.name not in self.skew:
            return action
        if isinstance(action, m.Cas) and action.key.startswith("cycle/"):
            return replace(action, new=json.dumps({**json.loads(action.new), "since_9_9": ["new"]}))
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

    def raise_and_stay(self, index: int, local: int, seconds: float) -> None:
        """A rank's exception ends its main thread, and its process stays."""
        if (node := self._pick(index)) and node.ranks:
            node.ranks[local % len(node.ranks)].stay(seconds, has_raised=True)

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

    def lose_most(self, survivors: int) -> None:
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
        """A whole node is suspended."""
        self._stand_still(index, seconds, frozen=True)

    def _stand_still(self, index: int, seconds: float, *, frozen: bool) -> None:
        node = self._pick(index)
        if node is None or node.suspended:
            return
        node.touched.add("suspended")
        node.suspended, node.frozen = True, frozen
        self._recheck(node)
        self.after(seconds, self._thaw, node, seconds)

    def _thaw(self, node: Launcher, seconds: float) -> None:
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
            self.after(seconds, self._heal, node, "no_store")

    def isolate(self, index: int, seconds: float) -> None:
        """A node reaches no other node."""
        if (node := self._pick(index)) and not node.is_host:
            node.touched.add("cut")
            node.isolated += 1
            self._recheck(node)
            self.after(seconds, self._heal, node, "isolated")

    def _heal(self, node: Launcher, what: str) -> None:
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

    def sicken(self, number: int, seconds: float) -> None:
        """Every check of this node, which may start later, finds it sick."""
        self.sick_until[f"n{number}"] = self.now + seconds
        for node in self.launchers[number : number + 1]:
            if node.ranks and not node.gone:
                node.post(m.Health(node.cycle, SICK))

    def overheat(self, number: int) -> None:
        """Checks find this node sick from now on, but only while it trains."""
        self.sick_in_training.add(f"n{number}")
        self.launchers[number].post(m.Health(self.launchers[number].cycle, SICK))

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
