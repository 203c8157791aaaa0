"""What early detection is told, and what it says: a rank at one moment, and a sign that it has stopped for good.

Plain values. Times are monotonic seconds of the node. A sample is one reading of a rank's board and of its
``/proc/<pid>/stat``, with its threads where they were asked for.

Does not cover: what follows from them (`early`), and how they are read (`early_samples`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STOPPED, ENDED, UNCHANGED = "stopped", "main_thread_ended", "unchanged"
"""Kinds of signs: the process is stopped; its main thread is gone and others remain; none of its threads moves."""


@dataclass(frozen=True, slots=True)
class ThreadCount:
    """One thread at one moment: a thread that has run since has another one, however shortly it did."""

    state: str
    ticks: int
    """Clock ticks of processor time since its start."""
    switches: int
    """Context switches since its start, voluntary or not."""
    exiting: bool = False
    """Whether the kernel is taking it down already."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rank at one moment."""

    rank: int
    """Global."""
    who: tuple[int, int]
    """Its pid and start time: which process this is."""
    state: str
    """The main thread's, a letter of proc(5); "gone" where there is no such process."""
    activity: int
    """Grows with everything that the rank writes on its board."""
    silent: float
    """Seconds since its last sign of life; since its start where there was none."""
    speaks: bool
    """Whether it has ever given one: nothing follows from the silence of a program that says nothing."""
    finished: bool = False
    traced: bool = False
    """Whether a debugger is attached. Known where its threads were read."""
    threads: Mapping[int, ThreadCount] | None = None
    """By thread id; None where they were not asked for, or could not be read."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A structural sign that a rank will not go on by itself."""

    local_rank: int
    kind: str
    since: float
    """When it was first seen; it may have been so for longer."""
    text: str
    """One sentence: who, what, how we know."""
    certain: bool = True
    """Whether the rank may be ended for it. Otherwise it is worth a line in the journal, and no more."""
