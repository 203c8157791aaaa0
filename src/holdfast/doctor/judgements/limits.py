"""Limits of the user, the container and the machine, against the ranks that are to run here. Pure.

The least is what a bare rank was measured to have (torch 2.13 on CPU, gloo, one step: 238 MB, 4 threads, 10
descriptors); data loaders, NCCL and the model come on top.
Does not cover: limits that change while a job runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import GIB, MIB, count, listed, size

RANK_MEMORY, RANK_MEMORY_GOOD = 256 * MIB, GIB
RANK_THREADS, RANK_THREADS_GOOD = 8, 64
LAUNCHER_THREADS = 24
RANK_FILES, LAUNCHER_FILES, FILES_GOOD = 16, 64, 1024


@dataclass(frozen=True, slots=True)
class Room:
    """A limit, and what is used of it."""

    name: str
    """How people call it: `RLIMIT_NPROC`."""
    limit: int
    used: int

    @property
    def left(self) -> int:
        """How many more."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class CoreFiles:
    """Where the memory of a process that crashes goes."""

    soft: int | None
    """Bytes; None: no limit."""
    pattern: str
    """/proc/sys/kernel/core_pattern."""


def processes(rooms: Sequence[Room], nproc: int) -> Finding:
    """Processes and threads: the narrowest of these limits."""
    check = "processes"
    if not rooms:
        return ok(check, "no limit on processes and threads binds this user here")
    narrow = min(rooms, key=lambda room: room.left)
    told = (
        f"room for {narrow.left} more processes and threads ({narrow.name}: {narrow.used} of {narrow.limit})"
    )
    advice = "raise it (ulimit -u; docker run --pids-limit; podPidsLimit of the kubelet)"
    if narrow.left < LAUNCHER_THREADS + RANK_THREADS * nproc:
        return problem(check, f"{told}: too few for the launcher and {count(nproc, 'rank')}", advice)
    if narrow.left < RANK_THREADS_GOOD * nproc:
        return note(check, f"{told}: data loaders of {count(nproc, 'rank')} may come to the limit", advice)
    return ok(check, told)


def open_files(soft: int | None, hard: int | None, nproc: int) -> Finding:
    """RLIMIT_NOFILE; None: no limit."""
    check = "open files"
    if soft is None:
        return ok(check, "no limit (RLIMIT_NOFILE)")
    told = f"{soft} for each process (RLIMIT_NOFILE)"
    advice = f"ulimit -n {FILES_GOOD if hard is None else max(soft, min(hard, 65536))}"
    if hard is not None and hard <= soft:
        advice = "have the hard limit raised (limits.conf, LimitNOFILE=, docker run --ulimit nofile=65536)"
    if soft < LAUNCHER_FILES + RANK_FILES * nproc:
        return problem(check, f"{told}: too few for the launcher of {count(nproc, 'rank')}", advice)
    if soft < FILES_GOOD:
        return note(check, f"{told}: data loaders pass each tensor by a descriptor", advice)
    return ok(check, told)


def locked_memory(soft: int | None, adapters: Sequence[str]) -> Finding:
    """RLIMIT_MEMLOCK in bytes, None: no limit; `adapters` are the InfiniBand and RoCE devices of this machine."""
    check = "locked memory"
    told = "no limit" if soft is None else f"{size(soft)}"
    if soft is None or not adapters:
        return ok(
            check, f"{told} (RLIMIT_MEMLOCK); {'RDMA may use it' if adapters else 'no RDMA device needs it'}"
        )
    return note(
        check,
        f"{told} (RLIMIT_MEMLOCK), and NCCL locks memory for {listed(adapters)}",
        "ulimit -l unlimited (limits.conf, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)",
    )


def core_files(found: CoreFiles, nproc: int) -> Finding:
    """Whether a crash fills the disk."""
    check = "core files"
    if found.soft == 0 and not found.pattern.startswith("|"):
        return ok(check, "none is written when a rank crashes (RLIMIT_CORE is 0)")
    if found.pattern.startswith("|"):
        return ok(check, f"go to {found.pattern[1:].split(' ')[0]} when a rank crashes")
    most = "as large as a rank's memory" if found.soft is None else f"up to {size(found.soft)}"
    where = (
        found.pattern if found.pattern.startswith("/") else f"{found.pattern} in the rank's working folder"
    )
    return note(
        check,
        f"{count(nproc, 'rank')} that crash write {count(nproc, 'file')}, each {most} ({where}), before they end",
        "ulimit -c 0, unless you want to look into them",
    )


def memory(available: int, cgroup: Room | None, nproc: int) -> Finding:
    """Bytes that the machine has left, and the container's limit, if it has one."""
    check = "memory"
    left, who = available, "by the machine"
    if cgroup is not None and cgroup.left < available:
        left, who = cgroup.left, f"by {cgroup.name}, {size(cgroup.used)} of {size(cgroup.limit)}"
    told = f"{size(left)} available ({who}), {size(left / nproc)} for each of {count(nproc, 'rank')}"
    if nproc == 1:
        told = f"{size(left)} available ({who})"
    if left < RANK_MEMORY * nproc:
        return problem(
            check,
            f"{told}: a rank has {size(RANK_MEMORY)} once it has imported torch, so the kernel will kill ranks",
            "start fewer ranks (--nproc-per-node), end what else runs, or give the container more memory",
        )
    if left < RANK_MEMORY_GOOD * nproc:
        return note(
            check,
            f"{told}: little beside the {size(RANK_MEMORY)} that importing torch takes",
            "see that the model and its data loaders fit; a rank that the kernel kills looks like SIGKILL",
        )
    return ok(check, told)


def processors(usable: int, quota: float | None, nproc: int) -> Finding:
    """CPUs that this process may run on, and the container's quota in CPUs."""
    check = "processors"
    have = usable if quota is None else min(float(usable), quota)
    told = f"{have:g} usable" + (
        "" if quota is None or quota >= usable else f" (cgroup quota; {usable} seen)"
    )
    if have < nproc:
        return note(
            check,
            f"{told} for {count(nproc, 'rank')}: they wait for each other, and a step takes as long as the slowest",
            "start no more ranks than there are processors, or give the container more",
        )
    return ok(check, told)
