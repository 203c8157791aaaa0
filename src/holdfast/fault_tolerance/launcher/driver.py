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
from dataclasses import dataclass, replace

from holdfast.journal.writer import Journal

from ..monitor.gaps import SECOND, Gaps, overslept
from .best_effort import best_effort
from .control import messages as m
from .control import next_deadline, watched_keys
from .control.messages import Action, Event
from .control.node import Node, Settings
from .inbox import Inbox, Signalled
from .local_ranks import LocalRanks
from .monitor_keeper import MonitorSaid
from .rank_store import RankStores
from .ranks import exits
from .ranks.exits import RankExit
from .ranks.orphans import Sweep
from .recorder import Recorder
from .store import LocalStore, StoreClient

logger = logging.getLogger("holdfast.launcher")
TURN = 1.0
"""Seconds between two ticks at most."""


@dataclass(frozen=True, slots=True)
class Woken:
    """Another thread has something for the driver: an event, or new values of the store."""

    event: Event | None = None


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
    """Runs one node of a job."""

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        store: LocalStore | StoreClient,
        rank_stores: RankStores,
        ranks: LocalRanks,
        journal: Journal,
    ) -> None:
        self._settings, self._inbox, self._store = settings, inbox, store
        self._rank_stores, self._ranks, self._journal = rank_stores, ranks, journal
        self._clock = Clock()
        self._recorder = Recorder(journal.record)
        self._node: Node
        self._events: deque[Event] = deque()
        self._ticked_at = self._looked_at = 0.0
        self._store_of = -1  # the cycle for which a store of the ranks was opened last
        self._no_rank_store = ""  # why the ranks' store of this cycle could not be opened
        self._exit: m.Exit | None = None

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
        if self._exit is None:
            return exits.FAILED
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
            self._journal.record("run_end", exit_code=exits.FAILED, reason=reason)

    # -- events -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for the next events, at most until a tick is due."""
        due = min(next_deadline(self._node) or 0.0, self._ticked_at + TURN)
        slept_at, wait = time.monotonic(), max(0.0, due - self._clock.now())
        found = self._inbox.wait(wait)
        self._clock.woke(slept_at, slept_at + wait)
        # What the monitor reports explains an exit, and so does a signal that the rank has obeyed.
        for item in sorted(found, key=_urgency):
            self._receive(item)
        if noticed := self._ranks.noticed():
            self._send(noticed)
        if self._clock.now() < due or self._exit is not None:
            return
        if self._clock.now() - self._looked_at >= TURN:
            self._looked_at = self._clock.now()
            if sweep := self._ranks.late_sweep:
                self._send(*self._ranks.swept(sweep))
            if self._ranks.look_after() and self._node.is_leader:
                with best_effort("the preparation of the next cycle", self._journal.record):
                    self._rank_stores.prepare()
        self._send(self._tick())

    def _receive(self, item: object) -> None:
        match item:
            case MonitorSaid(message):
                self._send(*self._ranks.take_message(message))
            case RankExit() if self._ranks.owns(item):
                now = time.monotonic()
                before = list(self._ranks.before_exit(item, now))
                # One moment for all of them: who failed first may be a matter of a millisecond.
                self._send(*before, self._tick(), self._ranks.exited(item, now), at=now)
            case Signalled(number):
                self._send(m.Signal(number))
            case Sweep():
                self._send(*self._ranks.swept(item))
            case Woken(event):
                self._send(*([event] if event is not None else []))

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
        contact = self._store.contact()
        is_open = self._store_of == self._node.record.cycle
        return replace(
            self._ranks.state(self._clock.since),
            contact=contact.ago,
            round_trip=contact.round_trip,
            refused=contact.refused,
            rank_store=(self._no_rank_store or self._rank_stores.failure) if is_open else "",
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
                self._events.append(self._ranks.start(action))
            case m.SignalRanks(number, seconds_left):
                self._ranks.signal(signal.Signals(number), seconds_left)
            case m.KillRank():
                self._ranks.kill(action)
            case m.HoldVerdicts():
                self._ranks.hold_verdicts()
            case m.TakeEvidence():
                self._ranks.capture(action)
            case m.Sweep(linger):
                self._ranks.sweep(linger)
            case m.Report(record=record):
                lost = [] if record is None else [each for each in record.lost if each in self._members]
                if not self._ranks.report(action, tuple(lost)):
                    self._events.append(m.Reported(self._node.record.cycle))
            case m.WriteStopPages(word):
                self._ranks.write_stop(word)
            case m.Exit():
                self._exit = action
            case _:
                raise TypeError(f"no such action: {action!r}")

    @property
    def _members(self) -> tuple[str, ...]:
        return self._node.members.names

    def _open_rank_store(self, cycle: int) -> Event:
        self._no_rank_store, self._store_of = "", cycle
        try:
            address, port = self._rank_stores.open()
        except OSError as error:
            self._no_rank_store = f"no store for the ranks could be opened: {error}"
            return self._tick()
        return m.RankStoreOpen(cycle, address, port)


def _urgency(item: object) -> int:
    return 0 if isinstance(item, MonitorSaid) else 1 if isinstance(item, Signalled) else 2
