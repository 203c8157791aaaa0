"""What the kernel writes in /proc and in control groups, as numbers. Pure: text in, values out.

Always holds: a text that is not what it should be gives None, never an exception.
Does not cover: where these texts are; `losses` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NS, _US = 1e-9, 1e-6
_AFTER_NAME = 3
"""The number, in proc(5), of the first field after a thread's name."""
_DISK_TICKS = 42


@dataclass(frozen=True)
class RunTime:
    """Of one thread since it began, in seconds."""

    running: float
    waiting: float
    """Ready to run, with no CPU to run on."""


@dataclass(frozen=True)
class CpuTime:
    """Of all CPUs together since the machine began, in ticks."""

    busy: int
    stolen: int
    """Something was to run, and the hypervisor ran another machine."""


@dataclass(frozen=True)
class Group:
    """A control group of this process: one line of /proc/self/cgroup."""

    controllers: tuple[str, ...]
    """Empty for the unified hierarchy (version 2)."""
    path: str


def run_time(schedstat: str) -> RunTime | None:
    """From /proc/<pid>/task/<tid>/schedstat."""
    numbers = _numbers(schedstat.split())
    if numbers is None or len(numbers) < 2:
        return None
    return RunTime(numbers[0] * _NS, numbers[1] * _NS)


def cpu_time(stat: str) -> CpuTime | None:
    """From /proc/stat. None too where all is 0: some sandboxes show the file and count nothing."""
    line = next((line for line in stat.splitlines() if line.startswith("cpu ")), "")
    numbers = _numbers(line.split()[1:])
    if numbers is None or len(numbers) < 8 or not any(numbers):
        return None
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = numbers[:8]
    return CpuTime(user + nice + system + interrupts + soft_interrupts, stolen)


def throttled_seconds(cpu_stat: str) -> float | None:
    """From a control group's cpu.stat, of either version; None for a group without a limit to count for."""
    values = dict(line.split(maxsplit=1) for line in cpu_stat.splitlines() if len(line.split()) == 2)
    for name, unit in (("throttled_usec", _US), ("throttled_time", _NS)):
        numbers = _numbers([values[name]]) if name in values else None
        if numbers:
            return numbers[0] * unit
    return None


def disk_ticks(stat: str) -> int | None:
    """Ticks that a thread waited for block devices, from /proc/<pid>/task/<tid>/stat."""
    fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    numbers = _numbers(fields[_DISK_TICKS - _AFTER_NAME : _DISK_TICKS - _AFTER_NAME + 1])
    return numbers[0] if numbers else None


def groups(cgroup: str) -> tuple[Group, ...]:
    """From /proc/self/cgroup."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()]
    return tuple(
        Group(tuple(name for name in line[1].split(",") if name), line[2])
        for line in lines
        if len(line) == 3 and line[2].startswith("/")
    )


def cpu_stat_paths(found: Sequence[Group], root: str = "/sys/fs/cgroup") -> tuple[str, ...]:
    """Where cpu.stat of these groups and of those above them may be, the innermost first. A container often sees its
    own group as the root, under the path that it has outside."""
    paths: list[str] = []
    for group in found:
        if not group.controllers:
            mounts = [root]
        elif "cpu" in group.controllers:
            mounts = [f"{root}/{','.join(group.controllers)}", f"{root}/cpu"]
        else:
            continue
        parts = [part for part in group.path.split("/") if part and part != ".."]
        inward = ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
        paths += [f"{mount}/{path}/cpu.stat".replace("//", "/") for path in inward for mount in mounts]
    return tuple(dict.fromkeys(paths))


def _numbers(words: Sequence[str]) -> list[int] | None:
    """All of them, or None: whole numbers that are not negative."""
    if not all(word.isascii() and word.isdigit() for word in words):
        return None
    return [int(word) for word in words]
