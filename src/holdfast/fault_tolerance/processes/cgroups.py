"""Limits of the control groups of a process: of both versions, and of every visible level above it.

Functions raise OSError or ValueError where ``/proc`` has no control groups to read.
Source: cgroups(7), and the kernel's cgroup-v2 documentation.
Does not cover: levels above the root that a container sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from . import proc

NEVER = 1 << 60
"""Version 1 writes a number like this where there is no limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and how much of it is used."""

    name: str
    """As users know it: `RLIMIT_NPROC`."""
    maximum: int
    used: int

    @property
    def left(self) -> int:
        return max(0, self.maximum - self.used)


def pids(own: str = "/proc/self") -> Limit | None:
    """Processes and threads: the level with the least left."""
    limits = [
        Limit("cgroup pids.max", maximum, used)
        for folder in levels("pids", own)
        if (maximum := proc.number(f"{folder}/pids.max")) is not None
        and (used := proc.number(f"{folder}/pids.current")) is not None
    ]
    return min(limits, key=lambda limit: limit.left, default=None)


def memory(own: str = "/proc/self") -> Limit | None:
    """Bytes of memory, without the file cache that the kernel would free: the level with the least left."""
    limits = [limit for folder in levels("memory", own) if (limit := _memory(folder))]
    return min(limits, key=lambda limit: limit.left, default=None)


def levels(controller: str, own: str) -> Iterator[str]:
    """The folders of this process's group and of those above it, in the hierarchy that has the controller."""
    for mount, root, path in _hierarchies(controller, own):
        inside = os.path.relpath(path, root) if path.startswith(root) else "."
        folder = os.path.normpath(os.path.join(mount, inside))
        if not folder.startswith(mount) or not os.path.isdir(folder):  # not visible from this container
            folder = mount
        while True:
            yield folder
            if folder == mount:
                break
            folder = os.path.dirname(folder)


def _hierarchies(controller: str, own: str) -> Iterator[tuple[str, str, str]]:
    """(mount point, what of the hierarchy is mounted there, this process's group)."""
    groups = {}
    with open(f"{own}/cgroup", encoding="utf-8", errors="replace") as file:
        for each in file:
            _, names, path = each.rstrip("\n").split(":", 2)
            groups.update(dict.fromkeys(names.split(","), path))
    seen = set()
    with open(f"{own}/mountinfo", encoding="utf-8", errors="replace") as file:
        for each in file:
            before, _, after = each.partition(" - ")
            root, mount = before.split()[3:5]
            kind, options = after.split()[0], after.split()[-1].split(",")
            is_first = kind == "cgroup" and controller in options
            key = "" if kind == "cgroup2" else controller
            if (is_first or kind == "cgroup2") and key in groups and mount not in seen:
                seen.add(mount)
                yield mount, root, groups[key]


def _memory(folder: str) -> Limit | None:
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = proc.number(f"{folder}/{limit_name}")
        used = proc.number(f"{folder}/{used_name}")
        if limit is not None and used is not None and limit < NEVER:
            spare = int(proc.table(f"{folder}/memory.stat").get(cache, "0"))
            return Limit(f"cgroup {limit_name}", limit, max(0, used - spare))
    return None
