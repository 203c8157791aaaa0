"""The limits of this process, and what this user already has of them."""

from __future__ import annotations

import os
import resource
import threading

from ...fault_tolerance.processes import proc
from ..judgements.limits import CoreFiles, Room
from . import cgroups, text_file

CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 19, 21, 24  # linux/capability.h


def limit(which: int) -> tuple[int | None, int | None]:
    """(soft, hard); None: no limit."""
    soft, hard = (None if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(which))
    return soft, hard


def capable(number: int) -> bool:
    """Whether this process has the capability."""
    effective = text_file.table("/proc/self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> number & 1)


def processes() -> list[Room]:
    """What bounds the number of processes and threads."""
    rooms = []
    soft, _ = limit(resource.RLIMIT_NPROC)
    exempt = os.getuid() == 0 or capable(CAP_SYS_ADMIN) or capable(CAP_SYS_RESOURCE)
    if soft is not None and not exempt:
        rooms.append(Room("RLIMIT_NPROC", soft, _threads_of_this_user()))
    if (found := cgroups.pids()) is not None:
        rooms.append(found)
    most = text_file.number("/proc/sys/kernel/threads-max")
    running = (text_file.line("/proc/loadavg") or "").split()
    if most is not None and len(running) > 3:
        rooms.append(Room("kernel.threads-max", most, int(running[3].partition("/")[2])))
    own = threading.active_count() - 1  # of this command, gone in a moment
    return [Room(room.name, room.limit, max(0, room.used - own)) for room in rooms]


def _threads_of_this_user() -> int:
    """A limit of a user counts in all containers of the machine; only those of this one are seen."""
    total = 0
    for pid in proc.all_stats():
        status = text_file.table(f"/proc/{pid}/status")
        if status.get("Uid", "").split()[:1] == [str(os.getuid())]:
            total += int(status.get("Threads", "1"))
    return total


def core_files() -> CoreFiles:
    """What happens to a crashed process's memory."""
    return CoreFiles(
        limit(resource.RLIMIT_CORE)[0], text_file.line("/proc/sys/kernel/core_pattern") or "core"
    )


def rdma_devices() -> list[str]:
    """InfiniBand and RoCE adapters."""
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        return []


def available_memory() -> int:
    """Bytes that can be had without swapping, as the kernel estimates."""
    return int(text_file.table("/proc/meminfo")["MemAvailable"].split()[0]) * 1024
