"""The reading end of the journal: all nodes' files of a run directory as one list of events.

What always holds: what can be read is read. A torn line (a writer killed in the middle, a full disk), a line of a
newer version, a node's file that is missing or still being written never spoil the rest. Each node's events keep the
order in which they were written, even when its clock was set back.

Nodes are merged by time. Clocks of nodes differ, so each node's times are first moved by the median difference at
which it and the first node began the same cycles, which all nodes do together.

Does not cover: clocks where the nodes share no cycle, and a clock that drifts by seconds within one run.
"""

from __future__ import annotations

import heapq
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..fault_tolerance.errors import HoldfastError
from .event import Event, decode
from .writer import PREFIX, SUFFIX

K = TypeVar("K")

Start = tuple[str, int]
"""A cycle of a run, by the run's id: a requeued job begins with cycle 0 again, at another time."""

NEGLIGIBLE = 2.0
"""Seconds by which nodes begin a cycle apart with clocks that agree; less is not taken for a clock's difference."""


class JournalUnreadable(HoldfastError):
    """There is no journal to read. The message is one line: where, why, what to do."""


def read_run(run_dir: str) -> list[Event]:
    """All events of a run directory in the order of time, clocks of nodes aligned. Raises `JournalUnreadable`."""
    return merge(_read_file(path) for path in journal_files(run_dir))


def journal_files(run_dir: str) -> list[str]:
    """The journals in a run directory, at least one, sorted by name. Raises `JournalUnreadable`."""
    try:
        names = sorted(os.listdir(run_dir))
    except OSError as error:
        raise JournalUnreadable(f"{run_dir}: {error.strerror}. Name the run directory of a job.") from None
    found = [name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    if not found:
        raise JournalUnreadable(
            f"{run_dir}: no journal-<node>.jsonl in it. Is it a job's run directory (--ft-run-dir)?"
        )
    return [os.path.join(run_dir, name) for name in found]


def merge(journals: Iterable[Sequence[Event]]) -> list[Event]:
    """Several nodes' events as one list. Pure; the clock of the first journal that tells of cycles is the one that
    counts. A journal that tells of none, as a rank's, goes by the clock of its node's launcher."""
    told = [events for each in journals if (events := list(each))]
    known: dict[Start, float] = {}  # when each cycle began, by the clock that counts
    of_node: dict[str, float] = {}  # by how much each node's clock is ahead
    for events in told:
        own = _cycle_starts(events)
        if own:
            ahead = of_node[events[0].node] = clock_difference(known, own)
            known = {**{start: t - ahead for start, t in own.items()}, **known}
    moved = [_moved(events, of_node.get(events[0].node, 0.0)) for events in told]
    return [event for _, event in heapq.merge(*map(_in_order, moved), key=lambda pair: pair[0])]


def clock_difference(reference: Mapping[K, float], other: Mapping[K, float]) -> float:
    """Seconds by which the other clock is ahead, from when each of the two began which cycle."""
    shared = reference.keys() & other.keys()
    if not shared:
        return 0.0
    ahead = statistics.median(other[cycle] - reference[cycle] for cycle in shared)
    return ahead if abs(ahead) > NEGLIGIBLE else 0.0


def _read_file(path: str) -> list[Event]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise JournalUnreadable(f"{path}: {error.strerror}.") from None
    teller = os.path.basename(path)[len(PREFIX) : -len(SUFFIX)]
    return [event for line in lines if (event := decode(line, teller))]


def _cycle_starts(events: Iterable[Event]) -> dict[Start, float]:
    # The first of each: a launcher that is started again begins its node's part of a running cycle anew.
    starts: dict[Start, float] = {}
    run = ""
    for event in events:
        cycle = event.get("cycle")
        if event.kind == "run_start":
            run = str(event.get("run_id") or "")
        elif event.kind == "cycle_start" and isinstance(cycle, int):
            starts.setdefault((run, cycle), event.t)
    return starts


def _moved(events: list[Event], ahead: float) -> list[Event]:
    return [replace(event, t=event.t - ahead) for event in events] if ahead else events


def _in_order(events: Iterable[Event]) -> Iterable[tuple[float, Event]]:
    """Each event with a time that never goes back."""
    latest = float("-inf")
    for event in events:
        latest = max(latest, event.t)
        yield latest, event
