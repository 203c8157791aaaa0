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


def does_not_grow(samples: list[Held], settled: int, allowed: float) -> None:
    """From sample `settled` to the last one: no more descriptors, no more threads, and at most `allowed` MB more."""
    first, last = _ends(samples, settled)
    assert last.descriptors <= first.descriptors
    assert last.threads <= first.threads
    assert last.memory - first.memory <= allowed


def grown(samples: list[Held], settled: int) -> tuple[str, str]:
    """The same as a row of a table says it: by how many MB, and all else."""
    first, last = _ends(samples, settled)
    return (
        f"{last.memory - first.memory:+.1f} MB",
        f"memory {first.memory:.1f} → {last.memory:.1f} MB, descriptors {first.descriptors} → {last.descriptors}, "
        f"threads {first.threads} → {last.threads}, from sample {settled} on",
    )


def _ends(samples: list[Held], settled: int) -> tuple[Held, Held]:
    return samples[min(settled, len(samples) - 2)], samples[-1]
