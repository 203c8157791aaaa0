"""The reading end of the journal: the events of a run directory in the order of time, and the runs of a folder.

What can be read is read. A torn line (a writer killed in the middle, a full disk), a line of a newer version, a node's
file that is missing or still being written never spoil the rest. Each node's events keep the order in which they were
written, even when its clock was set back. A run that cannot be read is listed all the same, with the reason.

Nodes are merged by time. Clocks of machines differ, so the times of each are first moved by the median difference at
which it and the first machine began the same cycles, which all do together. A requeued job may keep its run id.

Does not cover: clocks where the machines share no cycle; a clock that drifts by seconds within one run; lives of a job
under one run id whose node 0 has the same name and pid, as in containers, where a machine was in one of them only, and
its clock is taken for wrong; the journal of a node whose name ends in `.rank-` and a number; runs further below a
folder than those that shared a run directory.
"""

from __future__ import annotations

import heapq
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter

from ..fault_tolerance.errors import HoldfastError
from .event import Event, decode
from .incidents import COUNTED, incidents
from .run_dir import CONCURRENT, default_folders
from .writer import NEWEST, PREFIX, SUFFIX

Start = tuple[str, str, int]
"""A cycle of a run, by the run's id and its node 0: a requeued job begins with cycle 0 again, maybe under the same id.
The name of node 0 has its launcher's pid, if there are several."""

STARTS = frozenset(("run_start", "cycle_start", "run_end"))
"""Kinds of events that decide where runs and cycles begin."""

NEGLIGIBLE = 2.0
"""Seconds by which nodes begin a cycle apart with clocks that agree; less is not taken for a clock's difference."""

CHUNK = 1 << 16
"""Bytes that are read of a file at a time. It is closed between: the nodes of a job can exceed the limit of files."""

_OF_A_RANK = re.compile(r"\.rank-\d+$")


class JournalUnreadable(HoldfastError):
    """There is no journal to read. The message is one line: where, why, what to do."""


def read_run(run_dir: str, kinds: Set[str] | None = None) -> list[Event]:
    """`stream_run` as a list."""
    return list(stream_run(run_dir, kinds))


def stream_run(run_dir: str, kinds: Set[str] | None = None, *, of_ranks: bool = False) -> Iterator[Event]:
    """The events of a run directory in the order of time, clocks of nodes aligned.

    Args:
        kinds: Only these. The others cost next to nothing, and the files of ranks are not opened. None: all.
        of_ranks: Those of ranks are, too.

    Raises:
        JournalUnreadable: At once, or while the events are read.
    """
    paths = journal_files(run_dir, of_ranks=of_ranks or kinds is None)
    if kinds is None or "progress" in kinds:
        paths += _files(run_dir, NEWEST)
    ahead = [0.0] * len(paths)
    if len(paths) > 1:
        first = (next(_events(path), None) for path in paths)
        ahead = _clocks(
            (event.node if event else "", _events(path, STARTS))
            for path, event in zip(paths, first, strict=True)
        )
    in_order = [_in_order(_events(path, kinds), by) for path, by in zip(paths, ahead, strict=True)]
    return (event for _, event in heapq.merge(*in_order, key=itemgetter(0)))


def journal_files(run_dir: str, *, of_ranks: bool = True) -> list[str]:
    """The journals in a run directory, sorted by name; without those of ranks there may be none.

    Raises:
        JournalUnreadable: It cannot be listed, or has no journal at all.
    """
    found = _files(run_dir, PREFIX)
    if not found:
        raise JournalUnreadable(
            f"{run_dir}: no journal-<node>.jsonl in it. Is it a job's run directory (--ft-run-dir)?"
        )
    return [path for path in found if of_ranks or not _OF_A_RANK.search(path[: -len(SUFFIX)])]


def _files(run_dir: str, prefix: str) -> list[str]:
    try:
        names = sorted(os.listdir(run_dir))
    except OSError as error:
        raise JournalUnreadable(f"{run_dir}: {error.strerror}. Name the run directory of a job.") from None
    return [
        os.path.join(run_dir, name) for name in names if name.startswith(prefix) and name.endswith(SUFFIX)
    ]


def newest_events(path: str, kinds: Set[str], size: int) -> list[Event]:
    """The events of these kinds in the last `size` bytes of one journal, as its node's clock has them.

    Raises:
        JournalUnreadable: It cannot be read.
    """
    try:
        start = max(0, os.path.getsize(path) - size)
    except OSError as error:
        raise JournalUnreadable(f"{path}: {error.strerror}.") from None
    return list(_events(path, kinds, start))


def last_moments(run_dir: str) -> dict[str, float]:
    """By launcher (source) the time of its last event of any kind, by its own clock. Raises `JournalUnreadable`."""
    found: dict[str, float] = {}
    for path in journal_files(run_dir, of_ranks=False) + _files(run_dir, NEWEST):
        with suppress(OSError):
            for event in _events(path, None, max(0, os.path.getsize(path) - CHUNK)):
                found[event.source] = max(event.t, found.get(event.source, 0.0))
    return found


def _clocks(journals: Iterable[tuple[str, Iterable[Event]]]) -> list[float]:
    """Seconds by which the clock of each journal is ahead, from its node and its events.

    All journals of a machine have one clock: launchers of several nodes have a name of their own in each life of the
    job, and ranks begin no cycles. The clock of the first machine that has cycles is the one that counts.
    """
    machines = []
    found: dict[str, dict[Start, float]] = {}
    for node, events in journals:
        machines.append(machine := node.partition(":")[0])
        for start, t in _cycle_starts(events).items():
            starts = found.setdefault(machine, {})
            starts[start] = min(t, starts.get(start, t))
    known: dict[Start, float] = {}  # when each cycle began, by the clock that counts
    clocks: dict[str, float] = {}
    for machine, starts in found.items():
        ahead = clocks[machine] = clock_difference(known, starts)
        for start, t in starts.items():
            known.setdefault(start, t - ahead)
    return [clocks.get(machine, 0.0) for machine in machines]


def clock_difference(reference: Mapping[Start, float], other: Mapping[Start, float]) -> float:
    """Seconds by which the other clock is ahead, from when each of the two began which cycle first."""
    ahead = [other[start] - reference[start] for start in reference.keys() & other.keys()]
    difference = statistics.median(ahead) if ahead else 0.0
    return difference if abs(difference) > NEGLIGIBLE else 0.0


def _cycle_starts(events: Iterable[Event]) -> dict[Start, float]:
    # The first of each: a launcher that is started again begins its node's part of a running cycle anew.
    starts: dict[Start, float] = {}
    run = ""
    for event in events:
        cycle = event.get("cycle")
        if event.kind == "run_start":
            run = str(event.get("run_id") or "")
        elif event.kind == "cycle_start" and isinstance(cycle, int):
            starts.setdefault((run, event.text("leader"), cycle), event.t)
    return starts


def _in_order(events: Iterable[Event], ahead: float) -> Iterator[tuple[float, Event]]:
    """Each event, by the clock that counts, with a time that never goes back."""
    latest = float("-inf")
    for event in events:
        moved = replace(event, t=event.t - ahead) if ahead else event
        if moved.t > latest:
            latest = moved.t
        yield latest, moved


def _events(path: str, kinds: Set[str] | None = None, start: int = 0) -> Iterator[Event]:
    """The events of a file, from this byte on. A line that ends with another kind is not decoded."""
    name = os.path.basename(path)[: -len(SUFFIX)]
    is_newest = name.startswith(NEWEST)
    source = name[len(NEWEST) :].rpartition(".")[0] if is_newest else name[len(PREFIX) :]
    wanted = {f'{kind}"}}'.encode() for kind in kinds or ()}
    for line in _lines(path, start):
        if kinds is not None:
            end = line[line.rfind(b'"kind":"', -80) + 8 :]
            if end not in wanted and end[-2:] == b'"}' and end.count(b'"') == 1:
                continue
        event = decode(line, source)
        if event is not None and (kinds is None or event.kind in kinds):
            yield event


def _lines(path: str, offset: int) -> Iterator[bytes]:
    rest = b""
    while True:
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                chunk = file.read(CHUNK)
        except OSError as error:
            if os.path.basename(path).startswith(NEWEST):  # its launcher has just ended
                return
            raise JournalUnreadable(f"{path}: {error.strerror}.") from None
        offset += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        yield from whole
        if not chunk:
            return


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    path: str
    begun: float | None
    """The time of its first event, unix seconds; None when none can be read."""
    incidents: int | None
    """How many; None when its journal cannot be read, or they were not counted."""
    problem: str = ""
    """Why it cannot."""


def runs_in(folders: Iterable[str], *, count: bool = False) -> list[Run]:
    """The runs in these folders, newest first. A folder that cannot be listed has none.

    Args:
        count: Count the incidents of each, which takes reading its journal.
    """
    found = []
    for path in (path for folder in folders for path in _folders(folder)):
        found += [path] if holds_journal(path) else []
        found += concurrent_runs(path)
    return sorted((_run(path, count) for path in found), key=lambda run: run.begun or 0.0, reverse=True)


def default_runs(*, count: bool = False) -> list[Run]:
    """The runs for which no directory was chosen, newest first, at least one. Raises `JournalUnreadable`."""
    folders = default_folders()
    runs = runs_in(folders, count=count)
    if not runs:
        places = " or ".join(folders)
        raise JournalUnreadable(f"no run in {places}. Name a job's run directory (ft_launcher --ft-run-dir).")
    return runs


def holds_journal(folder: str) -> bool:
    """Whether this is a run directory. Never raises."""
    try:
        return bool(journal_files(folder))
    except JournalUnreadable:
        return False


def concurrent_runs(run_dir: str) -> list[str]:
    """The run directories of other jobs that ran in this one at the same time."""
    found = [path for path in _folders(run_dir) if os.path.basename(path).startswith(CONCURRENT)]
    return [path for path in found if holds_journal(path)]


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())
    except OSError:
        return []


def _run(path: str, count: bool) -> Run:
    try:
        first = (next(_events(each), None) for each in journal_files(path))
        begun = min((event.t for event in first if event), default=None)
        return Run(path, begun, len(incidents(stream_run(path, COUNTED))) if count else None)
    except HoldfastError as error:
        return Run(path, None, None, str(error))
