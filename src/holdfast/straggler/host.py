"""Seconds that this process lost to its host between two reports, by cause.

    garbage collection      pauses of Python's collector
    waiting for a CPU       the training thread was ready to run, and had none
    CPU throttling          of that wait, what a limit of the control group made: at most what the group was throttled
    CPU stolen              a hypervisor ran something else: what a CPU as busy as the training thread's lost to it

What always holds: nothing here raises, and what cannot be known is NaN; a text of the kernel that is not what it should
be gives None. A reading takes some 40 µs on two cores, and a pause less than a microsecond more.
Does not cover: waits for disks and file systems, page faults, other threads than the one that began. A wait for a CPU
within a garbage collection counts as both. Interpreters other than CPython, whose pauses are not told.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple

GARBAGE, THROTTLED = "garbage collection", "CPU throttling"
NO_CPU, STOLEN = "waiting for a CPU", "CPU stolen"
CAUSES = (GARBAGE, NO_CPU, THROTTLED, STOLEN)
"""The same on all ranks, in this order."""
_LEVELS = 4
"""Control groups that are read, from this process's own outwards."""
_NS, _US = 1e-9, 1e-6


class Reading(NamedTuple):
    """What was counted until some moment, in seconds but for the ticks of CPUs; NaN where the kernel does not say."""

    moment: float
    running: float
    """Of the thread, since it began."""
    waiting: float
    """The thread was ready to run, with no CPU to run on."""
    busy: float
    """Ticks of all CPUs together, since the machine began."""
    stolen: float
    """Of these, something was to run, and the hypervisor ran another machine."""
    throttled: tuple[float, ...]
    """By control group."""


class HostLosses:
    """Counts from its creation to `close`, for the thread that created it."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._task = f"{proc}/self/task/{threading.get_native_id()}"
        paths = cpu_stat_paths(_read(f"{proc}/self/cgroup"), str(cgroups))
        limited = [path for path in paths if not math.isnan(throttled_seconds(_read(path)))]
        self._limited = limited[:_LEVELS]
        self._pauses = Pauses()
        self._last = self._reading()
        self.elapsed = math.nan
        """Seconds of wall time between the last two calls of `take`, the first of which is the creation."""

    def take(self) -> dict[str, float]:
        """Seconds lost since the last call, for each of `CAUSES`; NaN where it cannot be known."""
        now, before = self._reading(), self._last
        self._last = now
        self.elapsed = now.moment - before.moment
        losses = dict.fromkeys(CAUSES, math.nan)
        with contextlib.suppress(Exception):  # whatever a kernel writes, reports continue
            losses |= lost(before, now)
        losses[GARBAGE] = self._pauses.take()
        return losses

    def close(self) -> None:
        """Undo everything. May be called twice."""
        self._pauses.close()

    def _reading(self) -> Reading:
        return Reading(
            monotonic(),
            *run_time(_read(f"{self._task}/schedstat")),
            *cpu_time(_read(f"{self._proc}/stat")),
            throttled=tuple(throttled_seconds(_read(path)) for path in self._limited),
        )


def lost(before: Reading, now: Reading) -> dict[str, float]:
    """What was lost between two readings, but for garbage collection; NaN where one of them does not say."""
    elapsed, running = now.moment - before.moment, now.running - before.running
    waited = _grown(before.waiting, now.waiting)
    groups = map(_grown, before.throttled, now.throttled)
    throttled = max((one for one in groups if not math.isnan(one)), default=math.nan)
    # A group is throttled on each of its CPUs, and a throttled thread waits for a CPU: its wait is the bound.
    throttled = min(throttled, elapsed if math.isnan(waited) else waited)
    busy, stolen = _grown(before.busy, now.busy), _grown(before.stolen, now.stolen)
    # Of CPUs that had something to run, this share was stolen; the thread's was, while it had.
    running = elapsed if math.isnan(running) else running
    shares = (
        (running * stolen / max(busy, 1), elapsed * stolen / (busy + stolen))
        if busy + stolen
        else (math.nan,)
    )
    return {
        NO_CPU: waited if math.isnan(throttled) else waited - throttled,
        THROTTLED: throttled,
        STOLEN: min(shares),
    }


def _grown(before: float, now: float) -> float:
    """What was counted meanwhile; nothing where a counter went back, as in a container that moved."""
    return 0.0 if now < before else now - before


def _read(path: str) -> str:
    """The text of a file; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


class Pauses:
    """Counts from its creation to `close`."""

    def __init__(self) -> None:
        self._started = 0
        self._total = 0
        self._taken = 0
        gc.callbacks.append(self._told)

    def take(self) -> float:
        """Seconds of the pauses since the last call; one that has not ended belongs to the next."""
        total = self._total
        paused, self._taken = total - self._taken, total
        return paused * _NS

    def close(self) -> None:
        """Count no more. May be called twice."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        # One collection runs at a time, whatever the thread, and so these two numbers need no lock. With another
        # thread's entry in between (a callback may let threads change), a pause is lost, and never counted twice.
        if phase == "start":
            self._started = perf_counter_ns()
        elif self._started:
            self._total += perf_counter_ns() - self._started
            self._started = 0


# -- what the kernel writes, as numbers --------------------------------------------------------------------------------


def run_time(schedstat: str) -> tuple[float, float]:
    """Seconds that a thread ran, and that it waited for a CPU, from /proc/<pid>/task/<tid>/schedstat."""
    numbers = _numbers(schedstat.split(), 2)
    return numbers[0] * _NS, numbers[1] * _NS


def cpu_time(stat: str) -> tuple[float, float]:
    """Busy and stolen ticks, from /proc/stat. NaN too where all is 0: some sandboxes count nothing."""
    line = next((line for line in stat.splitlines() if line.startswith("cpu ")), "")
    numbers = _numbers(line.split()[1:], 8)
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = numbers[:8]
    return (
        (user + nice + system + interrupts + soft_interrupts, stolen)
        if any(numbers)
        else (math.nan, math.nan)
    )


def throttled_seconds(cpu_stat: str) -> float:
    """From a control group's cpu.stat, of either version; NaN for a group without a limit to count for."""
    values = dict(line.split(maxsplit=1) for line in cpu_stat.splitlines() if len(line.split()) == 2)
    for name, unit in (("throttled_usec", _US), ("throttled_time", _NS)):
        if name in values:
            return _numbers([values[name]], 1)[0] * unit
    return math.nan


def cpu_stat_paths(cgroup: str, root: str) -> tuple[str, ...]:
    """Where cpu.stat may be of the groups in /proc/self/cgroup and of those above them, the innermost first.

    A container often sees its own group as the root, under the path that it has outside.
    """
    paths: list[str] = []
    for line in cgroup.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not path.startswith("/"):
            continue
        if not controllers:  # the unified hierarchy (version 2)
            mounts = [root]
        elif "cpu" in controllers.split(","):
            mounts = [f"{root}/{controllers}", f"{root}/cpu"]
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        inward = ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
        paths += [f"{mount}/{path}/cpu.stat".replace("//", "/") for path in inward for mount in mounts]
    return tuple(dict.fromkeys(paths))


def _numbers(words: Sequence[str], least: int) -> list[float]:
    """The words as numbers: whole and not negative, `least` of them or more; else that many NaN."""
    if len(words) < least or not all(word.isascii() and word.isdigit() for word in words):
        return [math.nan] * least
    return [float(word) for word in words]
