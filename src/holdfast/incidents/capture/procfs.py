"""A process as ``/proc`` shows it: threads and children, sampled twice to see what moves; files on network filesystems.

Always holds: what cannot be read is empty. Reading ``stat``, ``status``, ``statm``, ``wchan``, ``schedstat``,
``children`` and the links in ``fd`` waits for no process; ``cmdline``, ``environ`` and ``maps`` wait for one that is
busy with its own memory, and ``stack`` and ``syscall`` for one that is becoming another program. Links are read and
never followed: a file server that hangs would hold the reader.

A count of bytes read (``io``) is one of those that wait for a process that becomes another program.
Processor time and switches are the scheduler's own counters where it shows them (nanoseconds, times put on a
processor), clock ticks and context switches otherwise.
Does not cover: processes that made themselves init's children; files that are mapped and closed.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...fault_tolerance.processes import proc
from ..evidence import Child, KernelThread, Process

GONE = Process(state="gone")
MOST_THREADS = 64
"""Threads that are described. The times of all are counted, up to `MOST_COUNTED`."""
MOST_COUNTED = 1024
MOST_CHILDREN = 64
MOST_PROCESSES = 512
"""Processes below a rank that are searched."""
COMMAND = 200
"""Characters of a child's command."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


def content(path: str, most: int = 1 << 20) -> str:
    """Its text, at most `most` bytes; '' where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        parts = [os.read(handle, min(most, 1 << 15))]
        while parts[-1] and (left := most - sum(map(len, parts))) > 0:
            parts.append(os.read(handle, min(left, 1 << 15)))
    except OSError:
        return ""
    finally:
        os.close(handle)
    return b"".join(parts).decode(errors="replace")


def names(folder: str) -> list[str]:
    """What is in a folder of ``/proc``; empty where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link(path: str) -> str:
    """Where a link leads; '' where it cannot be read."""
    try:
        return os.fsencode(os.readlink(path)).decode(errors="replace")
    except OSError:
        return ""


# -- threads and children, sampled -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """A thread or a child at one moment."""

    stat: proc.Stat | None
    """None of a thread that is counted only."""
    wait_channel: str = ""
    seconds: float = 0.0
    """Processor time since it began."""
    switches: int = 0


@dataclass(slots=True)
class Sample:
    """A process at one moment."""

    at: float
    """Monotonic seconds."""
    stat: proc.Stat
    wait_channel: str
    threads: dict[int, Task] = field(default_factory=dict)
    """The main thread first."""
    children: dict[int, Task] = field(default_factory=dict)
    """By pid, the nearest first."""
    complete: bool = False
    """Whether time was enough for all threads and children."""

    def add(self, until: float, *, children: Iterable[int] | None = None, counters: bool = True) -> None:
        """Add threads and children, as far as time is enough; waits for no process.

        Args:
            until: Monotonic seconds.
            children: Their pids; None: find them.
            counters: Whether processor time is wanted. One sample alone shows nothing with it.
        """
        pid = self.stat.pid
        tids = sorted((int(name) for name in names(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid))
        for number, tid in enumerate(tids[:MOST_COUNTED]):
            if number and time.monotonic() > until:
                break
            stat = proc.stat(pid, tid) if number < MOST_THREADS else None
            channel = proc.wait_channel(pid, tid) if stat else ""
            used = used_by(pid, tid, stat.cpu_ticks if stat else None) if counters else (0.0, 0)
            if stat or counters:
                self.threads[tid] = Task(stat, channel, *used)
        for child in below(pid, until) if children is None else children:
            if time.monotonic() > until or len(self.children) == MOST_CHILDREN:
                break
            if (stat := proc.stat(child)) is not None:
                seconds = stat.cpu_ticks / proc.TICKS_PER_SECOND
                if counters and stat.threads == 1:
                    seconds = used_by(child, child, stat.cpu_ticks)[0]
                self.children[child] = Task(stat, proc.wait_channel(child), seconds)
        self.complete = time.monotonic() <= until


def sample(pid: int, start_time: int) -> Sample | None:
    """This very process now, without threads; None when it is gone. A `start_time` of 0 takes any with this pid."""
    found = proc.stat(pid)
    if found is None or (start_time and found.start_time != start_time):
        return None
    return Sample(time.monotonic(), found, proc.wait_channel(pid))


def process(first: Sample | None, last: Sample | None, commands: Mapping[int, str]) -> Process:
    """What two samples show, or one: without a last one. A child without a command has its program's name."""
    if first is None:
        return GONE
    last = last or first
    # A thread that began between the samples had nothing at the first, if that had time for all threads.
    begun = Task(None) if first.complete and first is not last else None
    moved = {tid: _between(first.threads.get(tid, begun), each) for tid, each in last.threads.items()}
    counted = sum(seconds for seconds, _ in moved.values())
    ticks = (last.stat.cpu_ticks - first.stat.cpu_ticks) / proc.TICKS_PER_SECOND
    return Process(
        state=last.stat.state,
        wait_channel=last.wait_channel,
        # The process's own sum has threads that have ended since, but counts in ticks of 10 ms.
        cpu=round(ticks if ticks > counted + 2 / proc.TICKS_PER_SECOND else counted, 6),
        switches=sum(switches for _, switches in moved.values()),
        sampled_over=round(last.at - first.at, 4),
        memory=last.stat.resident_pages * _PAGE,
        threads=tuple(
            KernelThread(tid, each.stat.name, each.stat.state, each.wait_channel, *moved[tid])
            for tid, each in last.threads.items()
            if each.stat
        ),
        children=tuple(
            Child(
                pid,
                commands.get(pid) or f"[{each.stat.name}]",
                each.stat.state,
                each.wait_channel,
                _between(first.children.get(pid), each)[0],
            )
            for pid, each in last.children.items()
            if each.stat
        ),
    )


def _between(before: Task | None, now: Task) -> tuple[float, int]:
    """Seconds of processor time and switches between two samples; none where the first did not have it."""
    before = before or now
    return round(max(now.seconds - before.seconds, 0.0), 6), max(now.switches - before.switches, 0)


def used_by(pid: int, tid: int, ticks: int | None) -> tuple[float, int]:
    """Seconds of processor time and switches of one thread; `ticks` is its stat's, for kernels that show no better."""
    words = proc.one_read(f"/proc/{pid}/task/{tid}/schedstat").split()
    if len(words) == 3 and words != [b"0"] * 3 and all(word.isdigit() for word in words):
        return int(words[0]) * 1e-9, int(words[2])
    if ticks is None:
        return 0.0, 0
    switches = _SWITCHES.findall(content(f"/proc/{pid}/task/{tid}/status"))
    return ticks / proc.TICKS_PER_SECOND, sum(map(int, switches))


def bytes_read(pid: int) -> tuple[int, int] | None:
    """What it has read since it began: by system calls, and from storage, which mapped files are read from too.

    Waits for a process that becomes another program just now. None where the kernel does not show it.
    """
    found = proc.table(f"/proc/{pid}/io")
    try:
        return int(found["rchar"]), int(found["read_bytes"])
    except (KeyError, ValueError):
        return None


def below(pid: int, until: float = math.inf) -> tuple[int, ...]:
    """The pids below a process, the nearest first, as far as they are found by then (monotonic seconds)."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < MOST_PROCESSES:
        nearest: list[int] = []
        for parent in queue:
            if time.monotonic() > until:
                return (*found, *nearest)
            nearest += _children(parent)
        queue = [child for child in dict.fromkeys(nearest) if child not in found and child != pid]
        found += queue
    if found or "children" in names(f"/proc/{pid}/task/{pid}"):
        return tuple(found)
    return tuple(sorted(proc.descendants({pid}, proc.all_stats())))  # this kernel does not show them


def _children(pid: int) -> list[int]:
    """Each thread has its own: a data loader's workers are children of the thread that started them."""
    texts = (proc.one_read(f"/proc/{pid}/task/{thread}/children") for thread in names(f"/proc/{pid}/task"))
    return [int(word) for text in texts for word in text.split()]


def command(pid: int) -> str:
    """The command line in one line, cut; may wait. '' where there is none (a zombie, a thread of the kernel)."""
    text = content(f"/proc/{pid}/cmdline", 4 * COMMAND)
    return " ".join(text.replace("\0", " ").split())[:COMMAND]


# -- files on network filesystems ------------------------------------------------------------------------------

# fmt: off
_KINDS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "9p", "beegfs", "afs", "ocfs2", "gfs2",
    "glusterfs", "pvfs2", "orangefs", "wekafs", "panfs", "mmfs", "virtiofs", "coda",
})
# fmt: on
_OCTAL = re.compile(r"\\([0-7]{3})")
MOST_FILES = 16


def network_files(pid: int) -> tuple[str, ...]:
    """Open files that a file server could hold, as `path (nfs4)`, each once; the working directory too."""
    mounts = network_mounts(content(f"/proc/{pid}/mountinfo", 4 << 20))
    if not any(mounts.values()):
        return ()
    handles = [f"fd/{each}" for each in names(f"/proc/{pid}/fd")[:2048]]
    return on_network([link(f"/proc/{pid}/{each}") for each in ("cwd", *handles)], mounts)


def network_mounts(mountinfo: str) -> dict[str, str]:
    """Mount point -> kind of filesystem for those that come over a network, -> '' for the others (proc(5))."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and after:
            kind = after.split()[0]
            # Behind a filesystem in user space (sshfs, s3fs, gcsfuse) is mostly a network.
            remote = kind in _KINDS or kind == "fuse" or kind.startswith("fuse.")
            found[_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])] = kind if remote else ""
    return found


def on_network(paths: Iterable[str], mounts: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the paths that are on a network filesystem. Pure."""
    found: dict[str, None] = {}
    for path in paths:
        place = path
        while place.startswith("/") and place not in mounts and place != "/":
            place = place.rpartition("/")[0] or "/"
        if path.startswith("/") and mounts.get(place):
            found[f"{path} ({mounts[place]})"] = None
    return tuple(found)[:MOST_FILES]
