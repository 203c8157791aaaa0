"""The driver of one node: it feeds events to the controller and carries out the actions that come back.

One loop waits in one inbox. It turns what arrives there into events of :mod:`.control`, in their order, and carries
out actions in their order. It decides nothing: what follows from an event is in the controller.

What always holds: when :meth:`Driver.run` returns, no rank runs. An error of the launcher itself stops the ranks, and
the other nodes are informed.
Does not cover: an action that blocks this loop. It stops the node's heartbeat, so the other nodes continue without it.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
import traceback
from collections import deque
from dataclasses import dataclass

from holdfast.incidents.gathering import program
from holdfast.incidents.place import Place
from holdfast.journal.writer import Journal

from ..board import Snapshot
from ..monitor.control import IDLE, RUNNING, STOPPING, ControlPage
from ..monitor.gaps import SECOND, Gaps, overslept
from . import failure_report
from .best_effort import best_effort
from .control import messages as m
from .control import next_deadline, watched_keys
from .control.messages import Action, Event
from .control.node import Node, Settings
from .failure_report import FailedCycle
from .inbox import Inbox, Signalled
from .incidents import Incidents
from .limit_advice import Advice
from .monitor_keeper import MonitorKeeper, MonitorSaid
from .progress import ProgressLog, Reason
from .rank_reports import RankReports
from .rank_store import RankStores
from .ranks import exits, orphans
from .ranks.boards import CycleBoards
from .ranks.exits import RankExit
from .ranks.group import RankGroup
from .ranks.orphans import Sweep
from .ranks.process_states import ProcessStates, describe_blocked
from .ranks.start import RankStarter
from .recorder import Recorder
from .step_record import record_steps
from .store import LocalStore, StoreClient
from .warm.ahead import Ahead

logger = logging.getLogger("holdfast.launcher")
TURN = 1.0
"""Seconds between two ticks at most."""
QUIET = 3.0
"""Seconds after its start in which a rank that reports nothing has finished its imports."""


@dataclass(frozen=True, slots=True)
class Woken:
    """Another thread has something for the driver."""

    event: Event | None = None


@dataclass(slots=True)
class Parts:
    """What the driver works with; each is closed by the one that made it."""

    inbox: Inbox
    store: LocalStore | StoreClient
    rank_stores: RankStores
    starter: RankStarter
    boards: CycleBoards
    control: ControlPage
    monitor: MonitorKeeper
    journal: Journal
    incidents: Incidents
    reports: RankReports
    advice: Advice
    ahead: Ahead


class Clock:
    """Monotonic seconds without the time in which this launcher was suspended."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._lost = 0.0

    def now(self, at: float | None = None) -> float:
        """The time now, or at a moment in monotonic seconds."""
        return (time.monotonic() if at is None else at) - self._lost

    def woke(self, slept_at: float, planned: float) -> None:
        """A sleep that began at `slept_at` and was to end at `planned` (monotonic seconds) has ended now."""
        now = time.monotonic()
        if overslept(int(planned * SECOND), int(now * SECOND)):
            self._lost += now - slept_at
            self._gaps = self._gaps.with_gap(int(slept_at * SECOND), int(now * SECOND))

    def since(self, at_ns: int) -> float:
        """Seconds since this moment (monotonic nanoseconds), without the suspended ones."""
        return (time.monotonic_ns() - at_ns - self._gaps.since(at_ns)) / SECOND


class Driver:
    """Runs one node of a job; `run_id` and `safety_factor` are for reports and learned timeouts."""

    def __init__(self, settings: Settings, parts: Parts, run_id: str, safety_factor: float) -> None:
        self._settings, self._parts, self._run_id = settings, parts, run_id
        self._safety_factor = safety_factor
        self._clock = Clock()
        self._recorder = Recorder(parts.journal.record)
        self._states = ProcessStates()
        self._events: deque[Event] = deque()
        self._node: Node
        self._group: RankGroup | None = None  # the ranks of the newest cycle
        self._cycle = 0  # of these
        self._is_swept = False  # and they are gone
        self._progress = ProgressLog(0, 0.0)
        self._started_at = 0.0  # of the ranks, on the driver's clock
        self._ticked_at = 0.0
        self._asked = 0  # the signal by which the ranks of this cycle were asked to end
        self._noticed: tuple[int, int] | None = None  # the rank, and its signal, that was reported last
        self._rank_store = ""  # why the ranks' store of this cycle could not be opened
        self._sweep: Sweep | None = None
        self._exit: m.Exit | None = None

    @property
    def spared(self) -> set[int]:
        """Children of this launcher that no rank has left behind."""
        pool = self._parts.ahead.pool
        return {self._parts.monitor.pid} | (pool.pids if pool else set()) | program.RUNNING

    def run(self) -> int:
        """Run the node to its end; returns the launcher's exit code."""
        try:
            gc.freeze()  # collections leave out what is imported, and take about 1 ms
            self._node, actions = self._recorder.begin(self._settings, self._clock.now())
            self._carry_out(actions)
            self._loop()
        except Exception as error:
            self._fail(error)
        finally:
            self._end()
        return self._exit.code if self._exit is not None else exits.FAILED

    def _loop(self) -> None:
        while self._exit is None:
            self._turn()

    def _fail(self, error: Exception) -> None:
        """A defect of the launcher itself, or of the machine in a way that was not foreseen."""
        journal = self._parts.journal
        logger.error(
            "the launcher itself failed: %r. Please report this as a bug of Holdfast, with %s",
            error,
            journal.path,
        )
        logger.debug("where:", exc_info=error)
        journal.record(
            "launcher_error", error=repr(error), traceback="".join(traceback.format_exception(error))
        )
        self._kill_all()
        try:
            self._events.clear()
            self._send(m.LauncherFailed(repr(error)))
            self._loop()
        except Exception as another:
            logger.debug("and then:", exc_info=another)
            journal.record("run_end", exit_code=exits.FAILED, reason=f"the launcher itself failed: {error!r}")

    def _kill_all(self) -> None:
        """End what still runs of the ranks, by force."""
        if self._group is not None and not self._is_swept:
            sweep = self._sweep or Sweep(lambda: self.spared, lambda sweep: None)
            sweep.wait()
            self._group.close()
        self._group, self._sweep = None, None

    def _end(self) -> None:
        """Nothing is left: no rank, and no report that was begun."""
        self._kill_all()
        self._parts.incidents.close()
        if self._exit is not None:
            self._parts.store.drain(self._exit.wait)
        self._parts.starter.end()
        self._parts.boards.close()

    # -- events -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for the next events, at most until a tick is due."""
        due = min(next_deadline(self._node) or 0.0, self._ticked_at + TURN)
        slept_at, wait = time.monotonic(), max(0.0, due - self._clock.now())
        found = self._parts.inbox.wait(wait)
        self._clock.woke(slept_at, slept_at + wait)
        # What the monitor reports explains an exit, and so does a signal that the rank has obeyed.
        for item in sorted(found, key=_urgency):
            self._receive(item)
        if noticed := self._parts.boards.stops.noticed():
            self._notice(*noticed)
        if self._clock.now() >= due and self._exit is None:
            self._look_around()
            self._send(self._tick())

    def _receive(self, item: object) -> None:
        match item:
            case MonitorSaid(message):
                self._take_message(message)
            case RankExit() if self._group is not None and self._group.exits.get(item.local_rank) is item:
                self._take_exit(item)
            case Signalled(number):
                self._send(m.Signal(number))
            case Woken(event) if event is not None:
                self._send(event)
            case Sweep():
                self._take_sweep(item)
            case _:
                self._send()

    def _send(self, *events: Event, at: float | None = None) -> None:
        """Run events, and everything that follows from them at once, through the controller.

        Args:
            at: The moment from which they count, in monotonic seconds; None: now.
        """
        self._events.extend(events)
        while True:
            self._events.extendleft(reversed(self._parts.store.views()))
            if not self._events or self._exit is not None:
                return
            self._carry_out(self._recorder.step(self._node, self._events.popleft(), self._clock.now(at)))

    def _take_message(self, message: dict[str, object]) -> None:
        event = None
        with best_effort("a message of the monitor", self._parts.journal.record):
            event = self._parts.reports.take(message)
        if event is not None and not self._is_swept:
            self._send(event)

    def _take_exit(self, found: RankExit) -> None:
        """A rank has ended. What the monitor, its board and the other ranks report of that comes first."""
        parts, group, now = self._parts, self._group, time.monotonic()
        for said in parts.monitor.messages():
            self._take_message(said.message)
        parts.reports.last_look(found.local_rank, found.rank, found.pid)
        before = [*parts.reports.requests(parts.boards.snapshots())]
        before += parts.reports.failing(group, now) if group is not None and not self._asked else []
        # One moment for all of them: who failed first may be a matter of a millisecond.
        self._send(*before, self._tick(), parts.reports.exited(found, self._asked, now), at=now)

    def _notice(self, rank: int, number: signal.Signals) -> None:
        """A rank was asked to stop, and has written so on its page; not by this launcher, which has not asked it."""
        if (rank, number) != self._noticed and not self._asked:
            self._noticed = rank, number
            self._send(m.Signal(number, f"rank {rank}"))

    def _take_sweep(self, sweep: Sweep) -> None:
        """The cycle is over on this node."""
        if sweep is not self._sweep:
            return
        parts, group, cycle = self._parts, self._group, self._cycle
        self._sweep, self._is_swept = None, True
        if sweep.ended:
            parts.journal.record("swept", pids=sorted(sweep.ended))
        if left := sweep.left - (set(group.running.values()) if group is not None else set()):
            text = "processes that the ranks left behind could not be ended: %s"
            logger.warning(text, describe_blocked(sorted(left)))
        if group is not None:
            self._close_cycle(group, cycle)
        parts.starter.end()
        parts.control.enter(IDLE, cycle)
        self._send(m.Swept())

    def _close_cycle(self, group: RankGroup, cycle: int) -> None:
        """The last look at the ranks' boards."""
        parts = self._parts
        for said in parts.monitor.messages():
            self._take_message(said.message)
        for local in group.local_ranks:
            parts.reports.last_look(local, group.rank_of(local), group.pid_of(local))
        self._record_progress("cycle_end")
        with best_effort("the list of modules", parts.journal.record):
            parts.ahead.look_back(parts.boards.modules_path)
        with best_effort("the record of the steps' times", parts.journal.record):
            record_steps(parts.journal, parts.boards, group, cycle, self._safety_factor)
        if stuck := group.running.values():
            logger.error("%s did not end even by SIGKILL", describe_blocked(stuck))
        group.close()
        gc.collect()  # reference cycles of the reports, which Python itself rarely collects

    def _tick(self) -> m.Tick:
        """The state of the node now."""
        parts, now = self._parts, time.monotonic()
        self._ticked_at = self._clock.now()
        contact = parts.store.contact()
        group = self._group
        if group is not None:
            self._states.refresh(group.running, group.killed, now)
        boards = {local: self._board(board) for local, board in parts.boards.snapshots().items()}
        ended = group.exits if group is not None else {}
        return m.Tick(
            contact=contact.ago,
            round_trip=contact.round_trip,
            refused=contact.refused,
            rank_store=self._rank_store or parts.rank_stores.failure,
            boards=boards,
            cpu=self._states.cpu,
            blocked=self._states.blocked,
            stop_views=tuple(parts.boards.stops.views(ended.__contains__)) if parts.boards.stops else (),
        )

    def _board(self, board: Snapshot) -> m.Board:
        return m.Board(
            step=-1 if board.step is None else board.step,
            checkpoints=board.checkpoints,
            idle_for=self._clock.since(board.last_activity_ns) if board.connected else None,
            is_saving=any(section.name == "checkpointing" for section in board.open_sections),
        )

    def _look_around(self) -> None:
        """Once a second or so: the monitor, zygotes and standbys, and advice. Not during a sweep, which would take new
        processes of the launcher for processes of a rank."""
        parts = self._parts
        if self._sweep is not None:
            if self._sweep.is_late:
                logger.warning(
                    "the processes that the ranks left behind cannot be listed: they are not waited for"
                )
                self._take_sweep(self._sweep)
            return
        now = time.monotonic()
        parts.monitor.check(now)
        if self._group is None:
            return
        orphans.reap(self.spared | set(self._group.running.values()))
        with best_effort("the preparation of the next cycle", parts.journal.record):
            steady = parts.reports.has_first_signs or self._clock.now() - self._started_at > QUIET
            parts.ahead.look(now, parts.boards.modules_path, steady=steady)
            if steady and self._node.is_leader:
                parts.rank_stores.prepare()
        self._record_progress("interval")
        with best_effort("the check of the limits", parts.journal.record):
            parts.advice.on(parts.boards.snapshots().values())

    def _record_progress(self, reason: Reason) -> None:
        """The journal's `progress` event: at the end of each interval, or for this reason."""
        parts, now = self._parts, time.monotonic()
        with best_effort("the record of the progress", parts.journal.record):
            boards = parts.boards.snapshots()
            due = self._progress.due(now, boards)
            if fields := due if reason == "interval" else self._progress.event(now, boards, reason):
                parts.journal.record("progress", **fields)

    # -- actions ----------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)
        self._parts.store.watch(watched_keys(self._node))

    def _act(self, action: Action) -> None:
        parts, group = self._parts, self._group
        match action:
            case m.Cas() | m.Put() | m.Append():
                parts.store.carry_out(action)
            case m.Log(text, level):
                logger.log(level, "%s", text)
            case m.Journal(kind, fields):
                parts.journal.record(kind, **fields)
            case m.OpenRankStore(cycle):
                self._open_rank_store(cycle)
            case m.StartRanks():
                self._events.append(self._start(action))
            case m.SignalRanks(number, seconds_left):
                self._signal(signal.Signals(number), seconds_left)
            case m.KillRank(local, waited, why) if group is not None:
                self._kill(group, local, waited, why)
            case m.HoldVerdicts():
                parts.reports.mark_down()
                parts.control.enter(STOPPING, self._cycle)
            case m.TakeEvidence(trigger, seconds, rank) if group is not None:
                parts.reports.mark_down()
                self._record_progress("incident")
                with best_effort("the taking of evidence", parts.journal.record):
                    parts.incidents.capture(group, trigger, rank, seconds)
            case m.Sweep(linger):
                self._begin_sweep(linger)
            case m.Report() if group is not None:
                with best_effort("the report of the failures", parts.journal.record):
                    self._report(group, action)
            case m.WriteStopPages(word):
                parts.boards.stops.write(word)
            case m.Exit():
                self._exit = action

    def _open_rank_store(self, cycle: int) -> None:
        self._rank_store = ""
        try:
            address, port = self._parts.rank_stores.open()
        except OSError as error:
            self._rank_store = f"no store for the ranks could be opened: {error}"
            self._send(self._tick())
        else:
            self._events.append(m.RankStoreOpen(cycle, address, port))

    def _start(self, where: m.StartRanks) -> m.Started:
        """Start the ranks of a cycle; where that fails, none is left."""
        parts, cycle, members = self._parts, where.cycle, where.membership
        self._cycle = cycle
        name, count = self._settings.me.node, self._settings.me.ranks
        parts.rank_stores.close_earlier()
        if page := parts.boards.open(cycle, count):
            parts.control = page
            parts.monitor.move_to(page)
        parts.reports.begin_cycle(cycle)
        place = Place(
            name, members.index(name), len(members.members), members.world_size, self._run_id, cycle
        )
        with best_effort("the preparation of incident reports", parts.journal.record):
            parts.incidents.begin_cycle(place)
        self._asked, self._noticed, self._is_swept = 0, None, False
        self._progress = ProgressLog(cycle, time.monotonic())
        try:
            processes = parts.starter.start(where, name)
        except OSError as error:  # no process can be started, or no file for its output
            Sweep(lambda: self.spared, lambda sweep: None).wait()
            parts.starter.end()
            self._group = None
            return m.Started(str(error))
        first = members.first_rank(name)
        self._group = RankGroup(processes, {local: first + local for local in processes}, parts.inbox)
        for local, process in processes.items():
            parts.boards.admit(local, first + local, process.pid)
            start = "warm" if local in parts.starter.warm else "cold"
            rank = {"rank": first + local, "local_rank": local, "pid": process.pid, "start": start}
            parts.journal.record("rank_start", cycle=cycle, **rank)
        parts.control.enter(RUNNING, cycle)
        parts.monitor.look()
        self._started_at = self._clock.now()
        return m.Started(pids={local: process.pid for local, process in processes.items()})

    def _signal(self, number: signal.Signals, seconds_left: float | None) -> None:
        """With a limit it is passed on for good: the ranks find on their pages how long they have."""
        parts, group = self._parts, self._group
        if group is None:
            return
        if seconds_left is not None:
            parts.boards.stops.tell(number, time.monotonic() + seconds_left)
        if seconds_left is not None or number not in m.PASSED_ON:
            self._asked = number
        for local, pid in group.signal(number).items():
            if seconds_left is not None:
                logger.warning("Sending process %d closing signal %s", pid, number.name)
            if seconds_left is not None or number in m.PASSED_ON:  # the event `stop` has the rest
                parts.journal.record(
                    "signal_sent", pid=pid, local_rank=local, signal=number.name, by="launcher"
                )
        group.signal(signal.SIGCONT)  # a stopped rank would not see it

    def _kill(self, group: RankGroup, local: int, waited: float, why: str) -> None:
        rank, pid = group.rank_of(local), group.pid_of(local)
        logger.warning("rank %d (pid %d) %s: SIGKILL sent", rank, pid, why)
        self._parts.journal.record(
            "signal_sent", rank=rank, pid=pid, signal="SIGKILL", by="launcher", reason=why
        )
        group.kill(local, waited)

    def _begin_sweep(self, linger: float) -> None:
        if self._sweep is not None:
            self._sweep.hurry()
            return
        if pool := self._parts.ahead.pool:
            pool.settle()
        stuck = set(self._group.running.values()) if self._group is not None else set()
        self._sweep = Sweep(lambda: self.spared | stuck, self._parts.inbox.post, linger)

    def _report(self, group: RankGroup, action: m.Report) -> None:
        """The ranks that failed: log them, and have the incident reported."""
        parts, record, node = self._parts, action.record, self._settings.me.node
        found = [parts.reports.ended(group.exits[local]) for local in action.failed if local in group.exits]
        found = failure_report.in_full(found, parts.boards, parts.starter.files, parts.starter.log_dir)
        if found:
            cycle = FailedCycle(node, self._cycle, record, self._settings.max_restarts)
            failure_report.log(cycle, found)
        if record is None:
            return
        if found and record.node == node and action.named not in (None, found[0].exit.rank):
            first = found[0]
            reason = f"rank {first.exit.rank} (node {node}, pid {first.exit.pid}): {first.meaning}"
            who = {"cycle": self._cycle, "rank": first.exit.rank, "pid": first.exit.pid}
            parts.journal.record("cause", **who, reason=reason)
        lost = tuple(name for name in record.lost if name in self._node.members.names)
        is_begun = parts.incidents.conclude(
            group, found, reason=record.reason, reporter=record.node, lost_nodes=lost
        )
        if not is_begun:
            self._events.append(m.Reported())


def _urgency(item: object) -> int:
    return 0 if isinstance(item, MonitorSaid) else 1 if isinstance(item, Signalled) else 2
