"""What a process holds, so that a test can say that it does not hold more and more."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors, threads, and memory in MB of one process."""

    descriptors: int
    threads: int
    memory: float


def held(pid: int, *, shared: bool = False) -> Held:
    """What this process holds now: private memory, or with `shared` all that is of no file.

    What a process shares with its forks is private or not depending on who lives.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kind = "Anonymous:" if shared else "Private_"
    memory = sum(int(line.split()[1]) for line in lines if line.startswith(kind))
    return Held(
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        memory=memory / 1024,
    )


def left_in_shared_memory() -> set[str]:
    """The board directories of this user's jobs."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("holdfast-")}
