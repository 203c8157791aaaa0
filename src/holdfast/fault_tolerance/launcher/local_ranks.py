"""The ranks of one cycle after the other on this node: started, signalled, swept, and what is recorded of them.

One cycle is: boards, processes, evidence where something goes wrong, signals, the sweep of what the ranks left behind,
the last read of the boards, and the report. The driver calls the methods in that order, as the controller decides.

What always holds: a new process of the launcher itself is never started during a sweep, which would end it. Every
method returns soon; what may wait for a disk or for other processes is a thread.
Does not cover: a start that blocks (a Python interpreter on a filesystem that does not answer).
"""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from holdfast.health import programs
from holdfast.incidents.capture.context import NodeContext
from holdfast.journal.writer import Journal

from ..board import Snapshot
from ..board.values import CHECKPOINTING
from ..monitor.control import IDLE, RUNNING, STOPPING, ControlPage
from ..stop.rules import Word
from ..timeouts.effective_timeouts import Advice
from ..timeouts.kept_timeouts import record_steps
from .console import best_effort
from .control import messages as m
from .control.messages import Event
from .control.records import Membership, Settings
from .exit_codes import RankExit
from .inbox import Inbox
from .incidents import Incidents
from .monitor_keeper import MonitorKeeper
from .node_health import NodeHealth
from .progress import ProgressLog, Reason
from .rank_reports import RankReports
from .rank_store import RankStores
from .ranks import failures, orphans
from .ranks.boards import CycleBoards
from .ranks.orphans import Sweep
from .ranks.processes import ProcessStates, RankGroup, describe_blocked
from .ranks.start import RankStarter
from .warm.pool import Ahead

logger = logging.getLogger("holdfast.launcher")
QUIET = 3.0
"""Seconds after its start in which a rank that reports nothing has finished its imports."""


class LocalRanks:
    """The ranks of the newest cycle."""

    def __init__(
        self,
        settings: Settings,
        run_id: str,
        safety_factor: float,
        *,
        inbox: Inbox,
        starter: RankStarter,
        boards: CycleBoards,
        control: ControlPage,
        monitor: MonitorKeeper,
        journal: Journal,
        incidents: Incidents,
        advice: Advice,
        ahead: Ahead,
        rank_stores: RankStores,
        health: NodeHealth,
    ) -> None:
        self._health = health
        self._settings, self._run_id, self._safety_factor = settings, run_id, safety_factor
        self._inbox, self._starter, self._boards = inbox, starter, boards
        self._control, self._monitor, self._journal = control, monitor, journal
        self._incidents, self._advice, self._ahead = incidents, advice, ahead
        self._rank_stores = rank_stores
        self.reports = RankReports(settings.me.node, boards, journal, incidents)
        self._states = ProcessStates()
        self._group = RankGroup({}, {}, inbox)
        self._cycle, self._members = 0, Membership(())
        self._is_over = True  # no rank of the cycle is left
        self._progress = ProgressLog(0, 0.0)
        self._started_at = 0.0  # monotonic seconds
        self._signalled = 0  # the signal by which the launcher stops the ranks
        self._noticed: tuple[int, int] | None = None  # the rank, and its signal, that was reported last
        self._sweep: Sweep | None = None
        self.ended: set[int] = set()
        """Pids of the cycle before: its ranks, and what they left behind."""

    @property
    def _spared(self) -> set[int]:
        """Children of this launcher that no rank has left behind, or that cannot be ended."""
        stuck = set(self._group.running.values()) if self._sweep is not None else set()
        own = {self._monitor.pid} | self._rank_stores.pids | self._ahead.pids
        return own | programs.RUNNING | stuck

    # -- the start --------------------------------------------------------------------------------------------

    def start(self, where: m.StartRanks) -> m.Started:
        """Start the ranks of a cycle; where that fails, none is left."""
        cycle, members, me = where.cycle, where.membership, self._settings.me
        self._cycle, self._members = cycle, members
        if page := self._boards.open(cycle, me.ranks):
            self._control = page
            self._monitor.move_to(page)
        self.reports.begin_cycle(cycle)
        number, count = members.index(me.node), len(members.members)
        context = NodeContext(me.node, number, count, members.world_size, self._run_id, cycle, time.time())
        with best_effort("the preparation of incident reports", self._journal.record):
            self._incidents.begin_cycle(context)
        self._signalled, self._noticed, self._is_over = 0, None, False
        self._progress = ProgressLog(cycle, time.monotonic())
        first = members.first_rank(me.node)
        try:
            processes = self._starter.start(where, me.node)
            self._group = RankGroup(processes, {local: first + local for local in processes}, self._inbox)
        except (OSError, RuntimeError) as error:  # no process or thread, or no file for the output
            self.end_all()
            return m.Started(str(error))
        for local, process in processes.items():
            self._boards.admit(local, first + local, process.pid)
            start = "warm" if local in self._starter.warm else "cold"
            rank = {"rank": first + local, "local_rank": local, "pid": process.pid, "start": start}
            self._journal.record("rank_start", cycle=cycle, **rank)
        self._control.enter(RUNNING, cycle)
        self._monitor.scan()
        self._started_at = time.monotonic()
        return m.Started(pids={local: process.pid for local, process in processes.items()})

    # -- what happens -----------------------------------------------------------------------------------------

    def take_message(self, message: dict[str, object]) -> Iterator[Event]:
        """A message of the monitor, as an event if it means one."""
        with best_effort("a message of the monitor", self._journal.record):
            event = self.reports.take(message)
            if event is not None and not self._is_over:
                yield event

    def owns(self, found: RankExit) -> bool:
        """Whether it is the exit of a rank of this cycle."""
        return self._group.exits.get(found.local_rank) is found

    def before_exit(self, found: RankExit) -> Iterator[Event]:
        """What the monitor, the boards and the other ranks report when a rank has ended; it may explain that."""
        yield from self._last_messages()
        self.reports.final_scan(found.local_rank, found.rank, found.pid)
        yield from self.reports.requests(self._boards.snapshots())
        yield from self.uncaught()

    def _last_messages(self) -> Iterator[Event]:
        """What the monitor has reported and this launcher has not read yet."""
        for message in self._monitor.messages():
            yield from self.take_message(message)

    def uncaught(self) -> Iterator[Event]:
        """The ranks that still run although an uncaught exception has ended their main thread."""
        with best_effort("the report of an exception", self._journal.record):
            if not self._is_over and not self._signalled:
                yield from self.reports.uncaught(self._group)

    def exited(self, found: RankExit, now: float) -> m.RankExited:
        """A rank has ended; `now` in monotonic seconds."""
        return self.reports.exited(found, self._signalled, now)

    def noticed(self) -> Iterator[Event]:
        """A rank received a stop signal, not from this launcher, and has written so on its page."""
        found = None if self._signalled or self._is_over else self._boards.stops.noticed()
        if found is None or found == self._noticed:
            return
        yield from self._last_messages()  # the monitor reports a hung rank before it signals it
        if not self.reports.has_verdict(found[0]):
            self._noticed = found
            yield m.Signal(found[1], f"rank {found[0]}")

    def with_state(self, tick: m.Tick, idle_for: Callable[[int], float]) -> m.Tick:
        """The tick with the state of the ranks; `idle_for` has the seconds since a moment in monotonic nanoseconds."""
        group, stops = self._group, self._boards.stops
        if not self._is_over:
            self._states.refresh(group.running, group.killed, time.monotonic())
        return replace(
            tick,
            boards={local: _board(board, idle_for) for local, board in self._boards.snapshots().items()},
            cpu=self._states.cpu,
            blocked=self._states.blocked,
            stop_views=tuple(stops.views(group.exits.__contains__)) if stops else (),
        )

    def every_second(self) -> bool:
        """Once a second: the monitor, zygotes and standbys, advice. Returns whether training is steady, so that there
        is time to prepare the next cycle."""
        if self._sweep is not None:
            return False
        now = time.monotonic()
        self._monitor.check(now)
        if self._is_over:
            return False
        orphans.reap(self._spared | set(self._group.running.values()))
        steady = self.reports.has_first_signs or now - self._started_at > QUIET
        with best_effort("the preparation of the next cycle", self._journal.record):
            self._ahead.check(now, self._boards.modules_path, steady=steady)
        self._record_progress("interval")
        with best_effort("the check of the limits", self._journal.record):
            self._advice.on(self._boards.snapshots().values())
        return steady

    def _record_progress(self, reason: Reason) -> None:
        """The journal's `progress` event: at the end of each interval, or for this reason."""
        now = time.monotonic()
        with best_effort("the record of the progress", self._journal.record):
            boards = self._boards.snapshots()
            due = self._progress.due(now, boards)
            if fields := due if reason == "interval" else self._progress.event(now, boards, reason):
                self._journal.record("progress", **fields)
            elif shown := self._progress.shown(now, boards):
                self._journal.show("progress", **shown)

    # -- the end ----------------------------------------------------------------------------------------------

    def write_stop(self, word: Word) -> None:
        """Pass the newest word on the agreed stop on to the ranks."""
        self._boards.stops.write(word)

    def hold_verdicts(self) -> None:
        """From here on the monitor judges no rank of this cycle."""
        self.reports.mark_down()
        self._control.enter(STOPPING, self._cycle)

    def capture(self, action: m.TakeEvidence) -> None:
        """Take evidence, in a thread."""
        self.reports.mark_down()
        self._record_progress("incident")
        with best_effort("the taking of evidence", self._journal.record):
            self._incidents.capture(self._group, action.trigger, action.rank, action.seconds)

    def signal(self, number: signal.Signals, seconds_left: float | None) -> None:
        """Signal the ranks. With a limit it is passed on for good: the ranks find on their pages how long they have."""
        if seconds_left is not None:
            self._boards.stops.ask(number, time.monotonic() + seconds_left)
        is_passed_on = number in m.PASSED_ON
        is_stop = seconds_left is not None or not is_passed_on
        if is_stop:
            self._signalled = number
        for local, pid in self._group.signal(number).items():
            if is_stop:
                logger.warning("Sending process %d closing signal %s", pid, number.name)
            if seconds_left is not None or is_passed_on:  # the others have the event `stop`
                sent = {"pid": pid, "local_rank": local, "signal": number.name}
                self._journal.record("signal_sent", **sent, by="launcher")
        self._group.signal(signal.SIGCONT)  # a stopped rank would not see it

    def describe_exit(self, local: int) -> None:
        """Find out what keeps the process of a rank that is at its end, in a thread."""
        with best_effort("the description of a rank at its end", self._journal.record):
            self._incidents.describe_exit(self._group, local)

    def report_exits(self, why: str) -> None:
        """Report the ranks that were described and have not failed."""
        with best_effort("the report of a rank at its end", self._journal.record):
            self._incidents.report_exits(self._group, why)

    def kill(self, action: m.KillRank) -> None:
        """End one rank by a signal."""
        rank, pid = self._group.rank_of(action.local), self._group.pid_of(action.local)
        name = signal.Signals(action.number).name
        logger.warning("rank %d (pid %d) %s: %s sent", rank, pid, action.why, name)
        sent = {"rank": rank, "pid": pid, "signal": name}
        self._journal.record("signal_sent", **sent, by="launcher", reason=action.why)
        self._group.kill(action.local, action.waited, action.number)

    def sweep(self, linger: float) -> None:
        """End what the ranks left behind, in a thread; the inbox gets the :class:`Sweep` when it is done."""
        if self._sweep is not None:
            self._sweep.end_now()
            return
        self._ahead.settle()
        self._monitor.is_held = True
        self._health.pause(True)
        self._sweep = Sweep(lambda: self._spared, self._inbox.post, linger)

    @property
    def late_sweep(self) -> Sweep | None:
        """A sweep that should have been done: /proc cannot be read."""
        return self._sweep if self._sweep is not None and self._sweep.is_late else None

    def swept(self, sweep: Sweep) -> Iterator[Event]:
        """The ranks are gone: read their boards for the last time."""
        if sweep is not self._sweep:
            return
        group, self._sweep = self._group, None
        self._monitor.is_held = False
        self._health.pause(False)
        if sweep.is_late:
            text = "/proc cannot be read. The job continues, but processes that the ranks left behind may still run"
            logger.warning(text)
        self.ended = {group.pid_of(local) for local in group.local_ranks} | set(sweep.ended)
        if sweep.ended:
            self._journal.record("swept", pids=sorted(sweep.ended))
        if sweep.left:
            text = "processes that the ranks left behind could not be ended: %s"
            logger.warning(text, describe_blocked(sweep.left))
        yield from self._last_messages()
        for local in group.local_ranks:
            self.reports.final_scan(local, group.rank_of(local), group.pid_of(local))
        self._record_progress("cycle_end")
        with best_effort("the record of the steps' times", self._journal.record):
            record_steps(self._journal, self._boards, group, self._cycle, self._safety_factor)
        if stuck := set(group.running.values()):
            logger.error("%s did not end even by SIGKILL", describe_blocked(stuck))
        group.close()
        with best_effort("the list of modules", self._journal.record):
            self._ahead.end_cycle(self._boards.modules_path)
        self._starter.output.end()
        self._control.enter(IDLE, self._cycle)
        self._is_over = True
        gc.collect()  # reference cycles of the reports, which Python itself would collect after thousands of restarts
        yield m.Swept()

    def report(self, action: m.Report, lost: tuple[str, ...]) -> bool:
        """Log how the ranks failed, and have the incident reported; whether that is under way."""
        group, record, node, is_begun = self._group, action.record, self._settings.me.node, False
        with best_effort("the report of the failures", self._journal.record):
            found = [self.reports.ended(group.exits[each]) for each in action.failed if each in group.exits]
            found = failures.in_full(found, self._files_of, self._starter.output.log_dir)
            if len(found) > 1:
                found = self._incidents.in_order(group, found)
            if found:
                failures.log(found, node, self._cycle, record, self._settings.max_restarts)
            if record is None:
                return False
            is_begun = self._incidents.conclude(
                group,
                found,
                record=record,
                members=self._members,
                lost_nodes=lost,
                same_failure_limit=self._settings.same_failure_limit,
            )
        return is_begun

    def _files_of(self, exit: RankExit) -> tuple[str, list[str]]:
        """Torch's error file of a rank, and the files that may hold its stderr."""
        files, local = self._starter.output.files, exit.local_rank
        stderrs = [files.stderrs.get(local, ""), f"{self._boards.path(local, 'stderr')}.{exit.pid}"]
        return files.error_files.get(local, ""), stderrs

    def end_all(self) -> None:
        """End what still runs of the ranks, by force, and wait for that."""
        if not self._is_over:
            sweep = self._sweep or Sweep(lambda: self._spared, lambda sweep: None)
            sweep.wait()
            self._is_over = True
            self._group.close()
        self._group, self._sweep = RankGroup({}, {}, self._inbox), None
        self._starter.output.end()

    def close(self) -> None:
        """End the ranks, finish the reports under way, and remove the boards."""
        for end in self.end_all, self._incidents.close, self._boards.close:
            with best_effort("the end of the launcher", self._journal.record):
                end()


def _board(board: Snapshot, idle_for: Callable[[int], float]) -> m.Board:
    is_saving = any(section.name == CHECKPOINTING for section in board.open_sections)
    # A program that trains in another thread than the main one is not at its end.
    later = board.out_of_section_since_ns if board.main_raised else board.last_activity_ns
    return m.Board(
        step=-1 if board.step is None else board.step,
        checkpoints=board.checkpoints,
        idle_for=idle_for(board.last_activity_ns) if board.connected else None,
        is_saving=is_saving,
        ended_for=idle_for(max(board.main_ended_ns, later)) if board.main_ended_ns else None,
        has_raised=board.main_raised,
    )
