"""Reading samples for early detection: cheap ones always, the threads of a rank only where its sample looked odd.

What always holds: nothing is disturbed, and nothing here waits for the rank (no read takes its memory map's lock).
A sample without threads costs two reads of ``/proc``; with threads three for each of them.

Does not cover: what samples mean (`early`).
"""

from __future__ import annotations

import os
from contextlib import suppress

from ..fault_tolerance.board import Snapshot
from ..fault_tolerance.processes import proc
from .early_signs import Sample, ThreadCount

EXITING = 0x4
"""PF_EXITING of the kernel's task flags (field 9 of proc(5)'s stat)."""
SECOND = 1_000_000_000


def sample(board: Snapshot, now_ns: int, *, threads: bool) -> Sample | None:
    """The rank of this board now; None where nobody was admitted to it. `threads`: read these as well."""
    who = board.identity
    if who is None:
        return None
    found = proc.stat(who.pid)
    there = found is not None and found.start_time == who.start_time
    return Sample(
        rank=who.rank,
        who=(who.pid, who.start_time),
        state=found.state if found is not None and there else "gone",
        activity=max(board.last_activity_ns, board.connected_ns),
        silent=max(0.0, (now_ns - (board.last_activity_ns or who.started_ns)) / SECOND),
        speaks=board.connected or board.heartbeat_count > 0,
        finished=board.finished,
        traced=threads and there and _tracer(who.pid) != 0,
        threads=thread_counts(who.pid) if threads and there else None,
    )


def state(pid: int) -> str:
    """The letter of a process, "gone" where there is none."""
    found = proc.stat(pid)
    return found.state if found else "gone"


def thread_counts(pid: int) -> dict[int, ThreadCount] | None:
    """Every thread of the process; None where they cannot all be read. One that ends meanwhile is left out."""
    counts = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                counts[int(name)] = _thread(f"/proc/{pid}/task/{name}")
    except (OSError, ValueError, IndexError):
        return None
    return counts


def _thread(folder: str) -> ThreadCount:
    with open(f"{folder}/stat", "rb") as file:
        line = file.read()
    fields = line[line.rindex(b")") + 2 :].split()
    return ThreadCount(
        state=fields[0].decode(),
        ticks=int(fields[11]) + int(fields[12]),
        switches=sum(
            _numbers(f"{folder}/status", b"voluntary_ctxt_switches:", b"nonvoluntary_ctxt_switches:")
        ),
        exiting=bool(int(fields[6]) & EXITING),
    )


def _tracer(pid: int) -> int:
    """The debugger's pid, 0 without one. Where that cannot be read there may be one."""
    try:
        return sum(_numbers(f"/proc/{pid}/status", b"TracerPid:"))
    except (OSError, ValueError):
        return -1


def _numbers(path: str, *names: bytes) -> list[int]:
    with open(path, "rb") as file:
        return [int(line.split()[1]) for line in file if line.startswith(names)]
