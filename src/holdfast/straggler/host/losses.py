"""Seconds that this process lost to its host between two reports, by cause.

    garbage collection      pauses of Python's collector
    waiting for a CPU       the training thread was ready to run, and had none
    CPU throttling          of that wait, what a limit of the control group made: at most what the group was throttled
    CPU stolen              a hypervisor ran something else: what a CPU as busy as the training thread's lost to it
    waiting for a disk      the training thread waited for a block device

What always holds: nothing here raises, and what cannot be known is NaN. A reading takes some 40 µs on two cores.
Does not cover: waits for network file systems, page faults that need no disk, other threads than the one that began.
A wait for a CPU within a garbage collection counts as both.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from .kernel_texts import (
    CpuTime,
    RunTime,
    cpu_stat_paths,
    cpu_time,
    disk_ticks,
    groups,
    run_time,
    throttled_seconds,
)
from .pauses import Pauses

GARBAGE, THROTTLED, DISK = "garbage collection", "CPU throttling", "waiting for a disk"
NO_CPU, STOLEN = "waiting for a CPU", "CPU stolen"
CAUSES = (GARBAGE, NO_CPU, THROTTLED, STOLEN, DISK)
"""The same on all ranks, in this order."""
_LEVELS = 4
"""Control groups that are read, from this process's own outwards."""


@dataclass(frozen=True)
class Reading:
    """What the kernel counted until some moment; None where it does not say."""

    moment: float
    thread: RunTime | None
    cpus: CpuTime | None
    throttled: tuple[float | None, ...]
    """Seconds, by control group."""
    disk: float | None
    """Seconds."""


class HostLosses:
    """Counts from its creation to `close`, for the thread that created it."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._task = f"{proc}/self/task/{threading.get_native_id()}"
        self._tick = _tick()
        self._counts_disk = _read(f"{proc}/sys/kernel/task_delayacct").strip() == "1"
        paths = cpu_stat_paths(groups(_read(f"{proc}/self/cgroup")), str(cgroups))
        self._limited = [path for path in paths if throttled_seconds(_read(path)) is not None][:_LEVELS]
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
        with contextlib.suppress(Exception):  # whatever a kernel writes, reports go on
            losses |= lost(before, now)
        losses[GARBAGE] = self._pauses.take()
        return losses

    def close(self) -> None:
        """Undo everything. May be called twice."""
        self._pauses.close()

    def _reading(self) -> Reading:
        ticks = disk_ticks(_read(f"{self._task}/stat")) if self._counts_disk else None
        return Reading(
            moment=monotonic(),
            thread=run_time(_read(f"{self._task}/schedstat")),
            cpus=cpu_time(_read(f"{self._proc}/stat")),
            throttled=tuple(throttled_seconds(_read(path)) for path in self._limited),
            disk=None if ticks is None else ticks * self._tick,
        )


def lost(before: Reading, now: Reading) -> dict[str, float]:
    """What was lost between two readings, but for garbage collection; NaN where one of them does not say."""
    elapsed = now.moment - before.moment
    running, waited = math.nan, math.nan
    if before.thread is not None and now.thread is not None:
        running = now.thread.running - before.thread.running
        waited = max(0.0, now.thread.waiting - before.thread.waiting)
    throttled = max(_grown(before.throttled, now.throttled), default=math.nan)
    # A group is throttled on each of its CPUs, and a throttled thread waits for a CPU: its wait is the bound.
    throttled = min(throttled, elapsed if math.isnan(waited) else waited)
    disk = math.nan if before.disk is None or now.disk is None else max(0.0, now.disk - before.disk)
    return {
        NO_CPU: waited if math.isnan(throttled) else waited - throttled,
        THROTTLED: throttled,
        STOLEN: _stolen(before.cpus, now.cpus, elapsed if math.isnan(running) else running, elapsed),
        DISK: disk,
    }


def _grown(before: tuple[float | None, ...], now: tuple[float | None, ...]) -> list[float]:
    pairs = zip(before, now, strict=False)
    return [max(0.0, new - old) for old, new in pairs if old is not None and new is not None]


def _stolen(before: CpuTime | None, now: CpuTime | None, running: float, elapsed: float) -> float:
    """Of CPUs that had something to run, this share was stolen; the thread's was, while it had."""
    if before is None or now is None:
        return math.nan
    busy, stolen = max(0, now.busy - before.busy), max(0, now.stolen - before.stolen)
    if not busy + stolen:
        return math.nan
    return min(running * stolen / max(busy, 1), elapsed * stolen / (busy + stolen))


def _tick() -> float:
    try:
        return 1.0 / os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError, ZeroDivisionError):
        return 0.01


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
