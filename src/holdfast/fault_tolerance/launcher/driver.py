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
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from holdfast.in_time import TooLate, UnderWay
from holdfast.journal.writer import Journal

from ..monitor.deadlines import SECOND, Suspensions, was_suspended
from .console import best_effort
from .control import messages as m
from .control import next_deadline, watched_keys
from .control.messages import Action, Event
from .control.node import READING, Node, Run, Start
from .control.records import Settings
from .exit_codes import Outcome, RankExit
from .inbox import Inbox
from .local_ranks import LocalRanks
from .node_health import NodeHealth
from .rank_store import RankStores
from .ranks.orphans import Sweep
from .recorder import Recorder
from .store import LocalStore, StoreClient

logger = logging.getLogger("holdfast.launcher")
TURN = 1.0
"""Seconds between two ticks at most."""


class Clock:
    """Monotonic seconds without the time in which this launcher could not act: suspended, or blocked in an action.

    Such a time does not count against the ranks: they may have been suspended with the launcher.
    """

    def __init__(self, read_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._read_ns = read_ns
        self._suspensions = Suspensions()
        self._lost = 0
        self._last = self._expected = read_ns()

    def now(self, at: float | None = None) -> float:
        """The time now, or at a moment in monotonic seconds. To be called at least once a second, except in a sleep."""
        if at is not None:
            return at - self._lost / SECOND
        now = self._read_ns()
        if was_suspended(self._expected, now):
            self._lost += now - self._last
            self._suspensions = self._suspensions.plus(self._last, now)
        self._last = self._expected = now
        return (now - self._lost) / SECOND

    def sleeps(self, seconds: float) -> None:
        """The next call of :meth:`now` comes after a sleep of this length at most."""
        self._expected = self._last + int(seconds * SECOND)

    def since(self, at_ns: int) -> float:
        """Seconds since this moment (monotonic nanoseconds), without the suspended ones."""
        return (self._read_ns() - at_ns - self._suspensions.since(at_ns)) / SECOND


class Driver:
    """Runs one node of a job."""

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        store: LocalStore | StoreClient,
        rank_stores: RankStores,
        ranks: LocalRanks,
        journal: Journal,
        health: NodeHealth,
    ) -> None:
        self._health = health
        self._iteration_file = IterationFile(settings.iteration_file, inbox.post, journal.record)
        self._settings, self._inbox, self._store = settings, inbox, store
        self._rank_stores, self._ranks, self._journal = rank_stores, ranks, journal
        self._clock = Clock()
        self._recorder = Recorder(journal.record)
        self._node: Node
        self._events: deque[Event] = deque()
        self._ticked_at = self._checked_at = 0.0
        self._exits_at: float | None = None  # when this turn found that ranks had ended, in monotonic seconds
        self._store_of = -1  # the cycle for which a store of the ranks was opened last
        self._no_rank_store = ""  # why the ranks' store of this cycle could not be opened
        self._exit: m.Exit | None = None

    @property
    def places(self) -> tuple[int, bool]:
        """How many nodes wait for a place, and whether this one does; from any thread."""
        node = getattr(self, "_node", None)
        return (0, False) if node is None else (node.waiting, getattr(node.phase, "is_spare", False))

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
            self._ranks.close()
            self._health.close()
        if self._exit is None:
            return Outcome.LAUNCHER_FAILED.code
        self._store.drain(self._exit.wait)
        return self._exit.code

    def _loop(self) -> None:
        while self._exit is None:
            self._turn()

    def _fail(self, error: Exception) -> None:
        """A defect of the launcher itself, or of the machine in a way that was not foreseen."""
        text = "the launcher itself failed: %r. Please report this as a bug of Holdfast, with %s"
        logger.error(text, error, self._journal.path)
        logger.debug("where:", exc_info=error)
        where = "".join(traceback.format_exception(error))
        self._journal.record("launcher_error", error=repr(error), traceback=where)
        self._events.clear()
        try:
            self._ranks.end_all()
            self._send(m.LauncherFailed(repr(error)))
            self._loop()
        except Exception as another:
            logger.debug("and then:", exc_info=another)
            reason = f"the launcher itself failed: {error!r}"
            self._journal.record("run_end", exit_code=Outcome.LAUNCHER_FAILED.code, reason=reason)

    # -- events -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for the next events, at most until a tick is due."""
        due = min(next_deadline(self._node) or 0.0, self._ticked_at + TURN)
        wait = max(0.0, due - self._clock.now())
        self._clock.sleeps(wait)
        found = self._inbox.wait(wait)
        self._clock.now()
        # What the monitor reports explains an exit, and so does a signal that the rank has obeyed.
        self._exits_at = None
        for item in sorted(found, key=_urgency):
            self._receive(item)
        self._send(*self._ranks.noticed())  # also what the store has
        if self._clock.now() < due or self._exit is not None:
            return
        if self._clock.now() - self._checked_at >= TURN:
            self._checked_at = self._clock.now()
            if sweep := self._ranks.late_sweep:
                self._send(*self._ranks.swept(sweep))
            is_steady = self._ranks.every_second()
            self._health.every_second(self._node.record.cycle, trains=isinstance(self._node.phase, Run))
            with best_effort("the preparation of the next cycle", self._journal.record):
                self._rank_stores.every_second(is_steady=is_steady and self._node.is_leader)
        tick = self._tick()  # first: an exception that it has is reported in the same turn
        self._send(*self._ranks.uncaught(), tick)

    def _receive(self, item: object) -> None:
        match item:
            case dict():  # of the monitor
                self._send(*self._ranks.take_message(item))
            case RankExit() if self._ranks.owns(item):
                # One moment for all that ended before this turn, however long the launcher takes to handle each: the
                # first one to fail may be a matter of a millisecond.
                now = self._exits_at = self._exits_at or time.monotonic()
                tick = self._tick()
                before = list(self._ranks.before_exit(item))
                self._send(*before, tick, self._ranks.exited(item, now), at=now)
            case Sweep():
                self._send(*self._ranks.swept(item))
            case m.ExitDescribed():
                self._ranks.reports.describe(item)
                self._send(item)
            case m.Signal():
                if item.is_stop:
                    self._health.stop_waiting()
                self._send(item)
            case m.EvidenceTaken() | m.Reported() | m.Suspected() | m.IterationRead() | m.Health():
                self._send(item)
            case m.StartRanks(cycle) if (
                isinstance(self._node.phase, Start) and cycle == self._node.record.cycle
            ):
                self._send(self._ranks.start(item))  # it waited for GPU memory

    def _send(self, *events: Event, at: float | None = None) -> None:
        """Run events, and everything that follows from them at once, through the controller.

        Args:
            at: The moment from which they count, in monotonic seconds; None: now.
        """
        self._events.extend(events)
        while True:
            self._events.extendleft(reversed(self._store.views()))
            if not self._events or self._exit is not None:
                return
            self._carry_out(self._recorder.step(self._node, self._events.popleft(), self._clock.now(at)))

    def _tick(self) -> m.Tick:
        """The state of the node now."""
        self._ticked_at = self._clock.now()
        is_open = self._store_of == self._node.record.cycle
        rank_store = (self._no_rank_store or self._rank_stores.failure) if is_open else ""
        return self._ranks.with_state(
            replace(self._store.contact(), rank_store=rank_store), self._clock.since
        )

    # -- actions ----------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)
        self._store.watch(watched_keys(self._node))

    def _act(self, action: Action) -> None:
        match action:
            case m.Cas() | m.Put() | m.Append():
                self._store.carry_out(action)
            case m.Log(text, level):
                logger.log(level, "%s", text)
            case m.Journal(kind, fields):
                self._journal.record(kind, **fields)
            case m.OpenRankStore(cycle):
                self._events.append(self._open_rank_store(cycle))
            case m.StartRanks():
                self._rank_stores.close_earlier()
                if not self._health.await_memory(self._ranks.ended, lambda: self._inbox.post(action)):
                    self._events.append(self._ranks.start(action))
            case m.SignalRanks(number, seconds_left):
                self._ranks.signal(signal.Signals(number), seconds_left)
            case m.KillRank():
                self._ranks.kill(action)
            case m.DescribeExit(local):
                self._ranks.describe_exit(local)
            case m.ReportExits(why):
                self._ranks.report_exits(why)
            case m.HoldVerdicts():
                self._ranks.hold_verdicts()
            case m.TakeEvidence():
                self._ranks.capture(action)
            case m.CheckHealth(cycle):
                self._health.check(cycle)
            case m.ReadIteration(cycle):
                self._iteration_file.read(cycle)
            case m.Sweep(linger):
                self._rank_stores.hold()
                self._ranks.sweep(linger)
            case m.Report(record=record):
                members = self._node.membership.names
                lost = [] if record is None else [each for each in record.lost if each in members]
                if not self._ranks.report(action, tuple(lost)):
                    self._events.append(m.Reported(self._node.record.cycle))
            case m.WriteStopPages(word):
                self._ranks.write_stop(word)
            case m.Exit():
                self._exit = action
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _open_rank_store(self, cycle: int) -> Event:
        self._no_rank_store, self._store_of = "", cycle
        try:
            address, port = self._rank_stores.open()
        except OSError as error:
            self._no_rank_store = f"no store for the ranks could be opened: {error}"
            return self._tick()
        return m.RankStoreOpen(cycle, address, port)


def _urgency(item: object) -> int:
    order = dict, m.Signal, RankExit
    return next((number for number, kind in enumerate(order) if isinstance(item, kind)), len(order))


# -- the iteration of the last checkpoint ----------------------------------------------------------------------


class IterationFile:
    """`checkpoint_iteration_file`: has the iteration of the last checkpoint, and may not exist yet.

    It is read in a thread; each reading posts one `IterationRead`. The reason why there is no number is logged and
    recorded once.
    Does not cover: who writes the file, and whether the checkpoint of that iteration is complete. A filesystem that
    hangs keeps one thread for good.
    """

    def __init__(self, path: str, post: Callable[[object], None], record: Callable[..., None]) -> None:
        self._path, self._post, self._record = path, post, record
        self._lock = threading.Lock()  # held by one reading after the other
        self._call: UnderWay[int] | None = None  # the newest; one that hangs is not followed by another
        self._reported: set[str] = set()
        self._is_first = True

    def read(self, cycle: int) -> None:
        """Begin a reading; its answer is for this cycle."""
        try:
            UnderWay(lambda: self._read(cycle))
        except RuntimeError as error:
            self._answer(cycle, -1, str(error))

    def _read(self, cycle: int) -> None:
        with self._lock:
            try:
                if self._call is None or self._call.is_done:  # what an earlier one has found since is old
                    self._call = UnderWay(self._number)
                number, why = self._call.answer(READING), ""
            except TooLate:
                self._answer(cycle, -1, f"its filesystem has not answered for {READING:g} s")
                return
            except FileNotFoundError as error:
                number, why = 0, "" if self._is_first else str(error.strerror)
            except (OSError, ValueError, RuntimeError) as error:
                number, why = -1, str(getattr(error, "strerror", None) or error)
            self._call, self._is_first = None, False
            self._answer(cycle, number, why)

    def _number(self) -> int:
        with open(self._path, "rb") as file:
            text = file.read(100).decode(errors="replace").strip()
        if not text.isdecimal() or len(text) > 18:  # the journal has numbers of 64 bits
            raise ValueError(f"{text!r} is no iteration")
        return int(text)

    def _answer(self, cycle: int, number: int, why: str) -> None:
        if why and why not in self._reported:
            self._reported.add(why)
            counts = "does not count as one without progress" if number < 0 else "counts from iteration 0"
            text = "checkpoint_iteration_file %s: %s. Cycle %d %s. Check the path"
            logger.warning(text, self._path, why, cycle, counts)
            self._record("iteration_unread", file=self._path, reason=why)
        self._post(m.IterationRead(cycle, number))
