"""Reading ``/proc``: the state, parent, start time, children and environment of a process; small files of the kernel,
and what they show of an NVIDIA driver.

Every function answers ``None`` or an empty value when the process is gone or not ours to read; none raises.
Does not cover: processes of another pid namespace.
"""

from __future__ import annotations

import glob
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

STATES = {"R": "running", "S": "sleeping", "D": "disk wait", "T": "stopped", "t": "traced", "Z": "zombie"}
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")
"""Files that show a driver; a container may lack the first. The last two are for WSL and Jetson, from their
documentation; not tried there."""


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of ``/proc/<pid>/stat`` (proc(5)): times are clock ticks, `state` is the one-letter code."""

    pid: int
    state: str
    ppid: int
    session: int
    cpu_ticks: int
    start_time: int
    major_faults: int
    """Page faults that went to a disk."""
    name: str = ""
    """Of the program, or of the thread: at most 15 bytes."""
    threads: int = 0
    resident_pages: int = 0
    flags: int = 0
    """PF_… of the kernel."""

    @property
    def is_running(self) -> bool:
        """False for a zombie: it has ended, only its parent's wait is missing."""
        return self.state not in "ZX"


def stat(pid: int, thread: int | None = None) -> Stat | None:
    """The process's ``/proc/<pid>/stat``, or that of one of its threads; None when there is no such one."""
    line = one_read(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
    if not line:
        return None
    # The command name may hold spaces and brackets, so fields are counted from its closing bracket.
    end = line.rindex(b")")
    fields = line[end + 2 :].split()
    return Stat(
        pid=pid if thread is None else thread,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_time=int(fields[19]),
        major_faults=int(fields[9]),
        name=line[line.index(b"(") + 1 : end].decode(errors="replace"),
        threads=int(fields[17]),
        resident_pages=int(fields[21]),
        flags=int(fields[6]),
    )


def one_read(path: str) -> bytes:
    """A file of a line or two, by one call and half as dear as by `open`; empty when the process is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""
    finally:
        os.close(handle)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with the pid it names a process for good."""
    found = stat(pid)
    return found.start_time if found else None


def is_running(pid: int, start_time: int) -> bool:
    """Whether the process with this pid *and* this start time exists and is no zombie."""
    found = stat(pid)
    return found is not None and found.start_time == start_time and found.is_running


def identity() -> dict[str, Any]:
    """What names this process for good on its machine, and `age`: its seconds until now."""
    pid = os.getpid()
    started = start_time(pid)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - (started or 0) / TICKS_PER_SECOND
    found = {"pid": pid, "started": started, "pid_namespace": _namespace()}
    return {**found, "age": round(age, 3) if started else 0.0}


def is_identified(found: Mapping[str, Any]) -> bool | None:
    """Whether the process with this `identity` of this machine runs; None where that cannot be seen from here."""
    pid, started = found.get("pid"), found.get("started")
    is_visible = found.get("pid_namespace") == _namespace()
    if not (is_visible and isinstance(pid, int) and isinstance(started, int)):
        return None
    return is_running(pid, started)


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def wait_channel(pid: int, thread: int | None = None) -> str:
    """The kernel function the process, or one of its threads, sleeps in; '' when it runs or the kernel is silent."""
    name = one_read(f"/proc/{pid}/wchan" if thread is None else f"/proc/{pid}/task/{thread}/wchan").decode(
        errors="replace"
    )
    return "" if name == "0" else name


def all_stats() -> dict[int, Stat]:
    """Every process that is visible now, by pid."""
    stats = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {found.pid: found for found in stats if found}


def descendants(roots: set[int], stats: dict[int, Stat]) -> set[int]:
    """The pids below `roots` (roots not included) in the given picture of the process tree."""
    children: dict[int, list[int]] = defaultdict(list)
    for found in stats.values():
        children[found.ppid].append(found.pid)
    below: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in below:
                below.add(child)
                queue.append(child)
    return below - roots


BATCH_JOB = (b"SLURM_JOB_ID", b"PBS_JOBID", b"LSB_JOBID")
"""Variables in which schedulers give a process the id of its job."""


def has_environment(pid: int, marker: bytes) -> bool:
    """Whether the process, one of this user's, was started with `marker` somewhere in its environment.

    Not if a scheduler started it for another job than this process: it has its environment from the process that
    submitted the job. The read waits while the process holds its memory map for writing.
    """
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    values = dict(each.partition(b"=")[::2] for each in environment.split(b"\0"))
    is_of_other_job = any(values[name] != os.environb.get(name) for name in BATCH_JOB if name in values)
    return marker in environment and not is_of_other_job


def first_line(path: str) -> str | None:
    """The first line of a small file, stripped; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None


def number(path: str) -> int | None:
    """The number in a small file; None where there is none (`max`, no file)."""
    text = first_line(path)
    return int(text) if text and text.lstrip("-").isdecimal() else None


def table(path: str) -> dict[str, str]:
    """Lines `name value` or `name: value`; empty where the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            parts = [line.split(None, 1) for line in file]
    except OSError:
        return {}
    return {part[0].rstrip(":"): part[1].strip() for part in parts if len(part) == 2}


def nvidia_driver() -> str:
    """The file that shows an NVIDIA driver, or ''. No library is loaded or called."""
    return next(filter(os.path.exists, NVIDIA), "")


def nvidia_gpus() -> int:
    """Number of GPUs that the driver shows to this node or container."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return len(glob.glob("/dev/nvidia[0-9]*"))
