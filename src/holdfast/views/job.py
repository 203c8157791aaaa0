"""A job as its run directory shows it now: where its time went, its incidents, and whether its launchers still run.

A launcher that has recorded no end is looked for among the processes of this machine, by its pid and start time.
Does not cover: launchers of other machines, and of other containers: for these the job is shown up to their last event,
which is at most 10 seconds old while ranks train.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..fault_tolerance.processes import proc
from ..journal.event import CycleSorter, Event
from ..journal.goodput import KINDS, JobNow, goodput
from ..journal.incidents import KINDS as OF_INCIDENTS
from ..journal.incidents import NOT_OVER, Incident, incidents
from ..journal.reader import STARTS, last_moments, stream_run


def read_job(run_dir: str, now: float) -> JobNow:
    """Read the journals at `now` (unix seconds). Raises `JournalUnreadable`."""
    before, launchers = _Launchers(), _Launchers()  # of the first reading, and of the second
    found = incidents(before.noted(stream_run(run_dir, OF_INCIDENTS)))
    missing, is_running = before.end(run_dir)
    if is_running and not missing:  # so what is not over in this life of the job has no other reason
        found = [
            replace(each, outcome=each.outcome.replace(NOT_OVER, "not over yet"))
            if each.run == before.run
            else each
            for each in found
        ]
    until = now if is_running else 0.0
    ledger = goodput(launchers.noted(stream_run(run_dir, KINDS)), found, until)
    end, _ = launchers.end(run_dir)
    progress = [event for _, event in sorted(launchers.progress.items())] if launchers.unended else ()
    return JobNow(ledger if ledger.attempts else None, found, progress, end)


def end_without_record(run_dir: str) -> Incident | None:
    """The launchers that ended without a record, and when; None where none did. Raises `JournalUnreadable`.

    It has no number: it is no incident of the journal before the job is started again.
    """
    launchers = _Launchers()
    for event in stream_run(run_dir, STARTS):
        launchers.take(event)
    if not (launchers.unended and (end := launchers.end(run_dir)[0])):
        return None
    return Incident(
        number=0,
        kind="launcher lost",
        t=launchers.last(run_dir),
        run=launchers.run,
        cycle=launchers.cycle[1],
        node=", ".join(launchers.gone()),
        rank=None,
        pid=None,
        what=end,
        unnoticed_seconds=0.0,
        restart_seconds=None,
        resume_seconds=None,
        outcome=NOT_OVER,
    )


class _Launchers:
    """Which launchers have begun and have recorded no end, from the events in order."""

    def __init__(self) -> None:
        self.progress: dict[str, Event] = {}  # by source, as all of these
        self.unended: dict[str, float] = {}  # the time of the last event
        self._starts: dict[str, Event] = {}
        self._codes: dict[str, str] = {}
        self.run = 0
        self._sorter, self.cycle = CycleSorter(), (0, 0)

    def noted(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events as they are."""
        for event in events:
            self.take(event)
            yield event

    def take(self, event: Event) -> None:
        source, cycle = event.source, self._sorter.cycle_of(event)
        self.run = cycle[0]
        if event.kind == "cycle_start":
            self.progress.pop(source, None)
            if cycle > self.cycle:  # a node that has no part in it is out of the job
                self.unended.clear()
                self.progress.clear()
                self._codes.clear()
                self.cycle = cycle
        elif event.kind == "run_start":
            self._starts[source] = event
            if not self.unended:
                self._codes.clear()
        elif event.kind == "progress":
            self.progress[source] = event
        elif event.kind == "run_end":
            self.unended.pop(source, None)
            self.progress.pop(source, None)
            self._codes[source] = str(event.get("exit_code"))
        if event.kind in ("run_start", "cycle_start") or source in self.unended:
            self.unended[source] = event.t

    def end(self, run_dir: str) -> tuple[str, bool]:
        """How they ended, in words, and whether one of them runs on this machine."""
        if not self.unended:
            codes = " and ".join(sorted({*self._codes.values()}))
            return f"the job ended with exit code {codes}" if codes else "", False
        gone, is_running = self.gone(), any(map(self._runs, self.unended))
        if not gone:
            return "", is_running
        who = "the job" if len(gone) == len(self.unended) else f"node {', '.join(gone)}"
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.last(run_dir)))
        return f"{who} ended without a record at {when}", is_running

    def gone(self) -> list[str]:
        """Those that do not run any more."""
        return [source for source in sorted(self.unended) if self._runs(source) is False]

    def last(self, run_dir: str) -> float:
        """When those that are gone wrote for the last time: unix seconds."""
        moments = last_moments(run_dir)
        return max(moments.get(source, self.unended[source]) for source in self.gone())

    def _runs(self, source: str) -> bool | None:
        return _is_running(self._starts.get(source))


def _is_running(start: Event | None) -> bool | None:
    """Whether the launcher runs that wrote this `run_start`; None where that cannot be seen from here."""
    if start is None or start.node.partition(":")[0] != socket.gethostname():
        return None
    return proc.is_identified(start.fields)
