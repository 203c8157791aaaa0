"""What a process holds, so that a test can say that it does not hold more and more."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors, threads, and private memory in MB of one process."""

    descriptors: int
    threads: int
    memory: float


def held(pid: int) -> Held:
    """What this process holds now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return Held(
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        memory=private / 1024,
    )


def left_in_shared_memory() -> set[str]:
    """The board directories of this user's jobs."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("holdfast-")}
