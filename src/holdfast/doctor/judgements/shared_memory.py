"""Shared memory: room for the boards of the ranks, and for what PyTorch's data loaders pass to each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import MIB, count, size

CHECK = "shared memory"
USUAL = 64 * MIB
"""What a container engine gives /dev/shm when it is not told otherwise. Source: docker run, --shm-size."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A folder in memory, as a process of this user finds it."""

    path: str
    size: int = 0
    """Bytes."""
    free: int = 0
    """Bytes that this user may still take."""
    filesystem: str = ""
    """Its type: `tmpfs`."""
    error: str = ""
    """Why the boards of the ranks cannot be made there; empty when they can."""
    full: bool = False
    """Whether it is for want of room."""


def judge(found: SharedMemory, nproc: int) -> Finding:
    """Whether so many ranks have room there."""
    if found.error:
        return problem(
            CHECK,
            f"{found.path}: {found.error}. Boards of ranks have to be on a disk, and data loader workers fail",
            (
                "free some space there, or make it larger"
                if found.full
                else f"mount a tmpfs with mode 1777 on {found.path}"
            )
            + " (docker run --shm-size=8g)",
        )
    told = f"{found.path}: {size(found.free)} free of {size(found.size)}, writable"
    if found.filesystem not in ("tmpfs", "ramfs"):
        return note(
            CHECK,
            f"{told}, but it is {found.filesystem or 'no tmpfs'}: a heartbeat may wait for a disk",
            f"mount a tmpfs with mode 1777 on {found.path}",
        )
    if found.free <= USUAL * nproc:
        return note(
            CHECK,
            f"{told}: enough for the boards of {count(nproc, 'rank')}; data loader workers may end with a bus error",
            "give it more if batches travel through it (docker run --shm-size=8g; an emptyDir with medium Memory)",
        )
    return ok(CHECK, told)
