"""A process as ``/proc`` shows it, sampled twice to see what moves.

Always holds: a sample reads only files that wait for no process, whatever state it is in, and takes well under a
millisecond for a rank of twenty threads. Processor time and switches are the scheduler's own counters where it shows
them (nanoseconds, times put on a processor), clock ticks and context switches otherwise.
Does not cover: what it waits in (`waiting_on`), its children and its files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ...fault_tolerance.processes import proc
from ..evidence import KernelThread, Process
from .kernel_file import content, names

GONE = Process(state="gone")
MOST_THREADS = 64
"""Threads that are described. The times of all are counted, up to `MOST_COUNTED`."""
MOST_COUNTED = 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Used:
    """What a thread or a process has had of the processors since it began."""

    seconds: float
    switches: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    at: float
    """Monotonic seconds."""
    stat: proc.Stat
    wait_channel: str
    threads: tuple[proc.Stat, ...]
    """The main thread first."""
    channels: Mapping[int, str]
    """Wait channel by thread."""
    used: Mapping[int, Used]
    """By thread, of all that are counted."""


def sample(pid: int, start_time: int) -> Sample | None:
    """This very process now; None when it is gone. A `start_time` of 0 takes any process with this pid."""
    found = proc.stat(pid)
    if found is None or (start_time and found.start_time != start_time):
        return None
    at = time.monotonic()
    every = sorted((int(name) for name in names(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid))
    described = [each for tid in every[:MOST_THREADS] if (each := proc.stat(pid, tid))]
    channels = {each.pid: proc.wait_channel(pid, each.pid) for each in described}
    ticks = {each.pid: each.cpu_ticks for each in described}
    used = {tid: use for tid in every[:MOST_COUNTED] if (use := used_by(pid, tid, ticks.get(tid)))}
    return Sample(at, found, channels.get(pid, ""), tuple(described), channels, used)


def process(first: Sample | None, second: Sample | None = None) -> Process:
    """What two samples say, or one; a process that was there and is not any more is "gone"."""
    if first is None:
        return GONE
    if second is None:
        return _described(first, first)
    return _described(first, second)


def _described(first: Sample, last: Sample) -> Process:
    moved = [_between(first, last, tid) for tid in last.used]
    counted = sum(each.seconds for each in moved)
    ticks = (last.stat.cpu_ticks - first.stat.cpu_ticks) / proc.TICKS_PER_SECOND
    return Process(
        state=last.stat.state,
        wait_channel=last.wait_channel,
        # The process's own sum knows threads that have ended since, but counts in ticks of 10 ms.
        cpu=round(ticks if ticks > counted + 2 / proc.TICKS_PER_SECOND else counted, 6),
        switches=sum(each.switches for each in moved),
        sampled_over=round(last.at - first.at, 4),
        memory=last.stat.resident_pages * _PAGE,
        threads=tuple(_thread(first, last, each) for each in last.threads),
    )


def _thread(first: Sample, last: Sample, found: proc.Stat) -> KernelThread:
    moved = _between(first, last, found.pid)
    channel = last.channels.get(found.pid, "")
    return KernelThread(found.pid, found.name, found.state, channel, round(moved.seconds, 6), moved.switches)


def _between(first: Sample, last: Sample, tid: int) -> Used:
    """A thread that began between the samples had nothing at the first."""
    now = last.used.get(tid, Used(0.0, 0))
    before = now if first is last else first.used.get(tid, Used(0.0, 0))
    return Used(max(now.seconds - before.seconds, 0.0), max(now.switches - before.switches, 0))


def used_by(pid: int, tid: int, ticks: int | None) -> Used | None:
    """What one thread has had; `ticks` is what its stat says, for kernels that show no better. None: not known."""
    words = proc.one_read(f"/proc/{pid}/task/{tid}/schedstat").split()
    if len(words) == 3 and words != [b"0"] * 3 and all(word.isdigit() for word in words):
        return Used(int(words[0]) * 1e-9, int(words[2]))
    if ticks is None:
        return None
    switches = _SWITCHES.findall(content(f"/proc/{pid}/task/{tid}/status"))
    return Used(ticks / proc.TICKS_PER_SECOND, sum(map(int, switches)))
