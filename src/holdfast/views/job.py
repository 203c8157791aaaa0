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
from ..journal.incidents import NOT_OVER, incidents
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


def end_without_record(run_dir: str) -> str:
    """Which launchers ended without a record, and when, in words; empty where none did. Raises `JournalUnreadable`."""
    launchers = _Launchers()
    for event in stream_run(run_dir, STARTS):
        launchers.take(event)
    return launchers.end(run_dir)[0] if launchers.unended else ""


class _Launchers:
    """Which launchers have begun and have recorded no end, from the events in order."""

    def __init__(self) -> None:
        self.progress: dict[str, Event] = {}  # by source, as all of these
        self.unended: dict[str, float] = {}  # the time of the last event
        self._starts: dict[str, Event] = {}
        self._codes: dict[str, str] = {}
        self.run = 0
        self._sorter, self._cycle = CycleSorter(), (0, 0)

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
            if cycle > self._cycle:  # a node that has no part in it is out of the job
                self.unended.clear()
                self._cycle = cycle
        elif event.kind == "run_start":
            self._starts[source] = event
            if not self.unended:
                self._codes.clear()
        elif event.kind == "progress":
            self.progress[source] = event
        elif event.kind == "run_end":
            self.unended.pop(source, None)
            self._codes[source] = str(event.get("exit_code"))
        if event.kind in ("run_start", "cycle_start") or source in self.unended:
            self.unended[source] = event.t

    def end(self, run_dir: str) -> tuple[str, bool]:
        """How they ended, in words, and whether one of them runs on this machine."""
        if not self.unended:
            codes = " and ".join(sorted({*self._codes.values()}))
            return f"the job ended with exit code {codes}" if codes else "", False
        runs = {source: _is_running(self._starts.get(source)) for source in self.unended}
        gone = [source for source in sorted(runs) if runs[source] is False]
        if not gone:
            return "", True in runs.values()
        who = "the job" if len(gone) == len(runs) else f"node {', '.join(gone)}"
        moments = last_moments(run_dir)
        last = max(moments.get(source, self.unended[source]) for source in gone)
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last))
        return f"{who} ended without a record at {when}", True in runs.values()


def _is_running(start: Event | None) -> bool | None:
    """Whether the launcher runs that wrote this `run_start`; None where that cannot be seen from here."""
    if start is None or start.node.partition(":")[0] != socket.gethostname():
        return None
    return proc.is_identified(start.fields)
