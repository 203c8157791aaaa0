"""What the control groups of this process allow: of both versions, and of every level above it that can be seen.

Source: cgroups(7), and the kernel's cgroup-v2 documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..judgements.limits import Room
from . import text_file

NEVER = 1 << 60
"""Version 1 writes a number like this where there is no limit."""


def pids(own: str = "/proc/self") -> Room | None:
    """Processes and threads: the level with the least left."""
    rooms = [
        Room("cgroup pids.max", limit, used)
        for folder in levels("pids", own)
        if (limit := text_file.number(f"{folder}/pids.max")) is not None
        and (used := text_file.number(f"{folder}/pids.current")) is not None
    ]
    return min(rooms, key=lambda room: room.left, default=None)


def memory(own: str = "/proc/self") -> Room | None:
    """Bytes of memory, without the file cache that the kernel would give up: the level with the least left."""
    rooms = [room for folder in levels("memory", own) if (room := _memory(folder))]
    return min(rooms, key=lambda room: room.left, default=None)


def cpus(own: str = "/proc/self") -> float | None:
    """How many CPUs' time there is: the least quota."""
    found = [quota for folder in levels("cpu", own) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


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
            key = (
                ""
                if kind == "cgroup2"
                else controller
                if kind == "cgroup" and controller in options
                else None
            )
            if key in groups and key is not None and mount not in seen:
                seen.add(mount)
                yield mount, root, groups[key]


def _memory(folder: str) -> Room | None:
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = text_file.number(f"{folder}/{limit_name}")
        used = text_file.number(f"{folder}/{used_name}")
        if limit is not None and used is not None and limit < NEVER:
            spare = int(text_file.table(f"{folder}/memory.stat").get(cache, "0"))
            return Room(f"cgroup {limit_name}", limit, max(0, used - spare))
    return None


def _quota(folder: str) -> float | None:
    words = (text_file.line(f"{folder}/cpu.max") or "").split()
    if len(words) == 2 and words[0].isdecimal():
        return int(words[0]) / int(words[1])
    quota = text_file.number(f"{folder}/cpu.cfs_quota_us")
    period = text_file.number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None
