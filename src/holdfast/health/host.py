"""The machine: memory, /dev/shm, the disk of the run directory, and its clock against those of the other nodes.

All are warnings: none says that no rank can train here.
Does not cover: a clock that is behind, where no other node has reported its time lately; which of two clocks is wrong.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from . import GOOD, WARNING, Finding

CHECK, CLOCK = "machine", "clock"
GIB = 1 << 30
LEAST_MEMORY, LEAST_SHM, LEAST_DISK = 2 * GIB, 64 << 20, 100 << 20
"""Bytes below which ranks are about to fail, data loaders get a bus error, the journal is about to lose events."""
AHEAD = 2.0
"""Seconds by which a clock may be ahead: more, and files and certificates of this node are in another's future."""


def check(run_dir: str | None) -> list[Finding]:
    """Memory, /dev/shm and disk."""
    found, facts = [], []
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
    rooms = [("memory", memory.get("MemAvailable", memory["MemFree"]), LEAST_MEMORY)]
    for what, folder, least in (("/dev/shm", "/dev/shm", LEAST_SHM), ("run directory", run_dir, LEAST_DISK)):
        if folder is None:
            continue
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            found.append(Finding(CHECK, WARNING, f"{what} {folder}: {error.strerror}"))
        else:
            rooms.append((what, disk.f_bavail * disk.f_frsize, least))
    for what, free, least in rooms:
        facts.append(f"{what} {free / GIB:.1f} GiB free")
        if free < least:
            found.append(
                Finding(CHECK, WARNING, f"{what}: {free >> 20} MiB free, less than {least >> 20}", what=what)
            )
    return found or [Finding(CHECK, GOOD, ", ".join(facts))]


def check_clock(node: str, swap: Callable[[str], str], now: Callable[[], float] = time.time) -> list[Finding]:
    """Compare the clock with the latest time that a node has reported.

    A time that was reported before it was read here must be in the past. If it is not, that node's clock is ahead of
    this one by at least the difference; the age of the report does not matter.

    Args:
        swap: Gives the value that the nodes share, and puts this one in its place; "" where there is none.
        now: Unix seconds.
    """
    own = now()
    try:
        reported = json.loads(swap(json.dumps({"node": node, "at": own})) or "{}")
        other, ahead = str(reported.get("node", "")), float(reported.get("at", 0.0)) - now()
    except (ValueError, TypeError, AttributeError):
        other, ahead = "", 0.0
    if other not in ("", node) and ahead > AHEAD:
        text = f"the clock of node {other} is {ahead:.1f} s ahead of this one"
        return [Finding(CLOCK, WARNING, text, what="ahead")]
    return [Finding(CLOCK, GOOD, "not behind that of another node")]
