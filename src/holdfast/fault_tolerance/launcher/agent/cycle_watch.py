"""Watching the ranks of one cycle until something decides about it.

Takes events from the inbox, writes what they mean into the journal and onto the console, and returns the first
one that ends the cycle. It stops nobody: that is the agent's part.
Does not cover: signals other than SIGUSR1/2 that a script uses for its own ends; they mean "stop" here.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ...board import Snapshot
from .. import console
from ..inbox import PASSED_ON, Signalled, stops
from ..monitor_keeper import MonitorSaid
from ..nodes.node_watch import LocalProgress, Rhythm
from ..nodes.records import HostLost, Moved, NodeLost, NodesWaiting, StopAsked
from ..ranks import orphans
from ..ranks.consequences import follows, lost_worker
from ..ranks.cpu_meter import CpuMeter
from ..ranks.exits import RankExit, as_exit_code
from ..ranks.group import RankGroup
from . import counted_steps
from .exit_record import record_exit
from .harmless import harmless
from .known import Known
from .lingering import Lingering
from .outcomes import Failed, Outcome, Requested, StoreFailed, Succeeded, ToldToStop
from .resume import Resume
from .surroundings import Surroundings

TICK = 1.0
STOPPING: set[int] = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *PASSED_ON}
MILESTONES = {"rank_connect", "first_step", "first_heartbeat", "first_section"}
CAUSE = 1.0  # seconds in which a process whose connections are closed has usually ended, a GPU aside
QUIET = 3.0  # seconds after its start in which a rank that tells nothing has got through its imports
SAME_MOMENT = 0.25  # seconds in which a signal that was sent to all processes has reached them all


class CycleWatch:
    """One cycle on this node."""

    def __init__(self, around: Surroundings, group: RankGroup, resume: Resume) -> None:
        self._around = around
        self._group = group
        self._resume = resume
        self._passed_on: set[int] = set()
        self._cpu = CpuMeter()
        self._rhythm = Rhythm()
        self._lingering = Lingering()
        self._told: set[tuple[str, int]] = set()
        self._ticked = self._began = time.monotonic()
        self._cycle = around.job.record.cycle
        self.known = Known(around.boards, group)

    def run(self) -> Outcome:
        """Wait for the first event that decides about this cycle; may be called again after one that can wait."""
        while True:
            left = TICK - (time.monotonic() - self._ticked)
            events = deque(sorted(self._around.inbox.wait(left), key=_urgency))
            if (told := self._noticed()) and not any(map(stops, events)):
                self._post_again(events)
                return told
            while events:
                outcome = self._handle(events.popleft())
                if outcome:
                    self._post_again(events)
                    return outcome
            if time.monotonic() - self._ticked >= TICK:
                self._ticked = time.monotonic()
                outcome = self._tick(self._ticked)
                if outcome:
                    return outcome

    def look_back(self) -> None:
        """The cycle is over: what ranks did in it that nobody has seen, while they saved for example.

        A short cycle's progress would be unknown else: whoever keeps the job's attempts goes by the first steps.
        """
        with harmless("the list of modules"):
            self._around.ahead.look_back(self._around.boards.modules_path)
        with harmless("the last look at the boards"):
            for local_rank in self._group.local_ranks:
                who = {"rank": self._group.rank_of(local_rank), "pid": self._group.pid_of(local_rank)}
                for news in self._around.boards.news(local_rank):
                    kind = news.pop("event")
                    if kind in MILESTONES and (kind, who["rank"]) not in self._told:
                        self._told.add((kind, who["rank"]))
                        self._around.journal.record(kind, **who, cycle=self._cycle, **news)
        counted_steps.tell(self._around, self._group, self._cycle)

    def hear_out(self) -> None:
        """Take in what the monitor has said until now: a verdict explains an exit, also one that nobody waits for."""
        self._all_heard(self._around.monitor.messages())

    def _noticed(self) -> ToldToStop | None:
        """A rank was told to stop, and says so on its page: it cannot stop alone."""
        found = self._around.boards.stops.noticed()
        return ToldToStop(found[1], by=f"rank {found[0]}") if found else None

    def _handle(self, event: object) -> Outcome | None:
        if isinstance(event, MonitorSaid):
            return self._heard(event.message)
        if isinstance(event, RankExit):
            return self._ended()
        if isinstance(event, Signalled):
            return self._signalled(event.number)
        if isinstance(event, HostLost):
            return event
        if isinstance(event, StopAsked):
            return self._asked(event)
        if (
            isinstance(event, Moved | NodeLost | NodesWaiting)
            and event.cycle == self._around.job.record.cycle
        ):
            return event  # others are news of a cycle that is over
        return None

    def _asked(self, event: StopAsked) -> ToldToStop | None:
        if event.cycle != self._around.job.record.cycle:
            return None
        return ToldToStop(signal.Signals(event.signal), by=f"node {event.node}")

    def _signalled(self, number: signal.Signals) -> Outcome | None:
        if number not in PASSED_ON:
            return ToldToStop(number)
        self._passed_on.add(number)
        for rank, pid in self._group.signal(number).items():
            self._around.journal.record(
                "signal_sent", pid=pid, local_rank=rank, signal=number.name, by="launcher"
            )
        return None

    def _ended(self) -> Outcome | None:
        # The monitor speaks before it kills: what it said is there by now and explains this exit.
        if request := self._all_heard(self._around.monitor.messages()):
            return request
        failures = self._fresh_failures()
        if failures and all(-found.status in self._passed_on for found in failures):
            return ToldToStop(signal.Signals(-failures[0].status))
        if failures:
            with harmless("the taking of evidence"):
                self._around.incidents.crashed(failures[0].rank)
            request = self._request_on(self._around.boards.snapshots())
            return request or self._signal_for_all(failures) or self._with_cause(failures)
        return None if self._group.running else Succeeded()

    def _fresh_failures(self) -> tuple[RankExit, ...]:
        exits = self._group.fresh_exits()
        for found in exits:
            self._tell_what_was_missed(found)
            record_exit(self._around.journal, self._around.boards, found, self._around.job.record.cycle)
        # A hung rank that was told to end has not succeeded, however politely it leaves.
        return tuple(found for found in exits if found.status != 0 or found.local_rank in self.known.verdicts)

    def _tell_what_was_missed(self, found: RankExit) -> None:
        """What a rank did between the monitor's last look and its end: its board is still there."""
        with harmless("the last look at a board"):
            for news in self._around.boards.news(found.local_rank):
                if news["event"] in MILESTONES:
                    who = {"rank": found.rank, "pid": found.pid, "cycle": self._around.job.record.cycle}
                    self._heard({**who, **news})

    def _with_cause(self, failed: tuple[RankExit, ...]) -> Outcome:
        """Ranks that only lost a peer may be gone before that peer is: wait a moment for the one to blame."""
        latest = time.monotonic() + CAUSE
        kept: list[object] = []
        while self.known.lacks_a_cause(failed) and (left := latest - time.monotonic()) > 0:
            kept += self._around.inbox.wait(left)
            said = [event for event in kept if isinstance(event, MonitorSaid)]
            kept = [event for event in kept if not isinstance(event, MonitorSaid)]
            if request := self._all_heard(said):
                self._post_again(kept)
                return request
            failed += self._fresh_failures()
            if stop := next((event for event in kept if stops(event)), None):
                self._post_again(event for event in kept if event is not stop)
                return ToldToStop(stop.number)  # it reached a rank first, and this one lost that rank
            if any(isinstance(event, Moved | HostLost) for event in kept):
                break  # another node was first to fail
        self._post_again(kept)
        return Failed(failed)

    def _signal_for_all(self, failures: tuple[RankExit, ...]) -> ToldToStop | None:
        """Slurm signals every process of a step, so a rank may die of it before this launcher gets its own."""
        died_of = {-found.status if found.status < 0 else found.status - 128 for found in failures}
        if not self._look_signalled(failures):
            return None
        latest = time.monotonic() + SAME_MOMENT
        kept: list[object] = []
        told: ToldToStop | None = None
        while told is None and (left := latest - time.monotonic()) > 0:
            for event in self._around.inbox.wait(left):
                if told is None and isinstance(event, Signalled) and _stops(event.number, died_of):
                    told = ToldToStop(event.number)
                else:
                    kept.append(event)
        self._post_again(kept)
        return told

    def _look_signalled(self, failures: tuple[RankExit, ...]) -> bool:
        """Whether one died of such a signal, or its data loader did, and the rest may only follow from that."""
        known = [self.known.failure(found) for found in failures]
        died = [as_exit_code(each.exit.status) - 128 in STOPPING and not each.hung for each in known]
        return all(by_it or follows(each) for by_it, each in zip(died, known, strict=True)) and (
            any(died) or any(map(lost_worker, known))
        )

    def _post_again(self, events: Iterable[object]) -> None:
        """For whoever looks next; an exit is told once however often it is posted (:meth:`RankGroup.fresh_exits`)."""
        for event in events:
            self._around.inbox.post(event)

    def _request_on(self, boards: Mapping[int, Snapshot]) -> Requested | None:
        """A rank that asks for something and then dies is heard, whether the monitor was quick enough or not."""
        for board in boards.values():
            if board.request and board.request.action != "continue":
                rank = board.identity.rank if board.identity else -1
                return Requested(board.request.action, board.request.description, rank)
        return None

    def _heard(self, message: dict[str, Any]) -> Outcome | None:
        kind = message.pop("event")
        cycle = self._around.job.record.cycle
        late = message.get("cycle", cycle) != cycle  # it is about a cycle that is over
        if kind == "verdict":
            with harmless("the evidence of a hang"):
                self._around.incidents.heard(message, old=late)
        if late:
            self._around.journal.record(kind, **message)
        if late or self._told_before(kind, message):
            return None
        if kind in ("signal_sent", "escalated"):
            self._lingering.hear(message, time.monotonic())
        if kind == "verdict":
            self.known.verdicts[message["local_rank"]] = message
            with harmless("the report of a hang"):
                console.say(console.hang(self._around.node, message))
        elif kind == "went_on":
            console.logger.warning("%s", console.went_on(self._around.node, message))
        elif kind == "unreadable":
            console.logger.warning("%s", message["text"])
        elif kind in ("first_step", "first_heartbeat", "first_section"):
            with harmless("the report of a restart"):
                self._resume.seen(kind, message, self._around.journal)
        if kind == "request" and message["action"] != "continue":
            self._around.journal.record(kind, **message)
            return Requested(message["action"], message["description"], message["rank"])
        self._around.journal.record(kind, **message)
        return None

    def _all_heard(self, said: Iterable[MonitorSaid]) -> Outcome | None:
        """The first of these that asks for something decides; the others are heard all the same."""
        outcomes = [self._heard(each.message) for each in said]
        return next((outcome for outcome in outcomes if outcome), None)

    def _told_before(self, kind: str, message: dict[str, Any]) -> bool:
        """What a new monitor tells again."""
        told_again = kind in MILESTONES and (kind, message["rank"]) in self._told
        self._told.add((kind, message.get("rank", -1)))
        return told_again

    def _tick(self, now: float) -> Outcome | None:
        if failure := self._around.job.rank_store_failure():
            return StoreFailed(failure)
        self._around.monitor.check(now)
        orphans.reap(self._group.pids | self._around.spared)
        with harmless("the preparation of the next cycle"):
            steady = self._is_steady(now)
            self._around.ahead.look(now, self._around.boards.modules_path, steady=steady)
            if steady:
                self._around.job.prepare()
        lingering = self._lingering.found(self._group, now)
        if lingering:
            return Failed(lingering)
        boards = list(self._around.boards.snapshots().values())
        with harmless("the check of the limits"):
            self._around.advice.on(boards)
        self._around.job.progress = self._progress(boards, now)
        reason = self._around.job.contact_lost(now)
        return HostLost(reason) if reason else None

    def _is_steady(self, now: float) -> bool:
        """Whether the ranks have begun to train, or will not say so: then there is time to prepare the next start."""
        return now - self._began > QUIET or any(
            kind in MILESTONES - {"rank_connect"} for kind, _ in self._told
        )

    def _progress(self, boards: list[Snapshot], now: float) -> LocalProgress:
        cpu = self._cpu.rate(self._group.pids, now)
        signs = [board.last_activity_ns / 1e9 for board in boards if board.connected]
        if not signs:
            return LocalProgress(None, cpu)
        last = max(signs)
        return LocalProgress(now - last, cpu, self._rhythm.longest(last, self._around.job.node_timeout))


def _stops(number: signal.Signals, died_of: set[int]) -> bool:
    """Whether this signal to the launcher means the end: one that is only passed on does if ranks died of it."""
    return number not in PASSED_ON or number in died_of


def _urgency(event: object) -> int:
    """What the monitor said first: a verdict explains the exit that it caused. Then signals: an exit may obey one."""
    return 0 if isinstance(event, MonitorSaid) else 1 if isinstance(event, Signalled) else 2
