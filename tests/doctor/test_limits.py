"""Limits against ranks, as values."""

from __future__ import annotations

import pytest

from holdfast.doctor.finding import NOTE, OK, PROBLEM
from holdfast.doctor.judgements import limits, shared_memory
from holdfast.doctor.judgements.limits import CoreFiles, Room
from holdfast.doctor.judgements.shared_memory import SharedMemory
from holdfast.doctor.quantity import GIB, MIB


@pytest.mark.parametrize(
    ("left", "nproc", "verdict"),
    [(1000, 1, OK), (1000, 8, OK), (500, 8, NOTE), (87, 8, PROBLEM), (88, 8, NOTE), (31, 1, PROBLEM)],
)
def test_processes(left: int, nproc: int, verdict: str) -> None:
    rooms = [Room("RLIMIT_NPROC", 10**6, 0), Room("cgroup pids.max", 2000, 2000 - left)]
    found = limits.processes(rooms, nproc)
    assert found.verdict == verdict
    assert (
        f"room for {left} more processes and threads (cgroup pids.max: {2000 - left} of 2000)" in found.what
    )


def test_no_limit_of_processes() -> None:
    assert limits.processes([], 64).verdict == OK


def test_a_limit_that_is_passed_already_has_no_room() -> None:
    assert Room("RLIMIT_NPROC", 10, 12).left == 0


@pytest.mark.parametrize(
    ("soft", "hard", "nproc", "verdict", "advice"),
    [
        (None, None, 64, OK, ""),
        (1024, 4096, 8, OK, ""),
        (256, 4096, 8, NOTE, "ulimit -n 4096"),
        (256, 1 << 30, 8, NOTE, "ulimit -n 65536"),
        (1024, 4096, 64, PROBLEM, "ulimit -n 4096"),
        (100, 100, 8, PROBLEM, "have the hard limit raised"),
    ],
)
def test_open_files(soft: int | None, hard: int | None, nproc: int, verdict: str, advice: str) -> None:
    found = limits.open_files(soft, hard, nproc)
    assert found.verdict == verdict
    assert found.advice.startswith(advice)


def test_locked_memory_matters_where_there_is_rdma() -> None:
    assert limits.locked_memory(8 * MIB, []).verdict == OK
    assert limits.locked_memory(None, ["mlx5_0"]).verdict == OK
    found = limits.locked_memory(8 * MIB, ["mlx5_0"])
    assert (found.verdict, found.what) == (NOTE, "8.0 MiB (RLIMIT_MEMLOCK), and NCCL locks memory for mlx5_0")


@pytest.mark.parametrize(
    ("soft", "pattern", "verdict", "told"),
    [
        (0, "core", OK, "none is written"),
        (0, "|/usr/lib/systemd/systemd-coredump %P", OK, "go to /usr/lib/systemd/systemd-coredump"),
        (None, "core", NOTE, "as large as a rank's memory (core in the rank's working folder)"),
        (MIB, "/var/crash/%p", NOTE, "up to 1.0 MiB (/var/crash/%p)"),
    ],
)
def test_core_files(soft: int | None, pattern: str, verdict: str, told: str) -> None:
    found = limits.core_files(CoreFiles(soft, pattern), 2)
    assert found.verdict == verdict
    assert told in found.what


def test_memory_is_what_machine_and_container_both_have() -> None:
    assert limits.memory(16 * GIB, None, 8).verdict == OK
    assert limits.memory(16 * GIB, Room("cgroup memory.max", 32 * GIB, 0), 8).verdict == OK
    tight = limits.memory(16 * GIB, Room("cgroup memory.max", 4 * GIB, GIB), 8)
    assert tight.verdict == NOTE
    assert (
        "3.0 GiB available (by cgroup memory.max, 1.0 GiB of 4.0 GiB), 384.0 MiB for each of 8" in tight.what
    )
    assert limits.memory(GIB, None, 8).verdict == PROBLEM


def test_processors() -> None:
    assert limits.processors(8, None, 8).verdict == OK
    assert limits.processors(8, 16.0, 8).what == "8 usable"
    found = limits.processors(8, 1.5, 2)
    assert found.verdict == NOTE
    assert "1.5 usable (cgroup quota; 8 seen) for 2 ranks" in found.what


@pytest.mark.parametrize(
    ("found", "nproc", "verdict", "told"),
    [
        (SharedMemory("/dev/shm", GIB, GIB, "tmpfs"), 8, OK, "1.0 GiB free of 1.0 GiB, writable"),
        (SharedMemory("/dev/shm", 64 * MIB, 64 * MIB, "tmpfs"), 1, NOTE, "bus error"),
        (SharedMemory("/dev/shm", GIB, GIB, "ext4"), 1, NOTE, "it is ext4: a heartbeat may wait for a disk"),
        (SharedMemory("/dev/shm", error="Permission denied"), 1, PROBLEM, "/dev/shm: Permission denied."),
    ],
)
def test_shared_memory(found: SharedMemory, nproc: int, verdict: str, told: str) -> None:
    judged = shared_memory.judge(found, nproc)
    assert judged.verdict == verdict
    assert told in judged.what


def test_a_full_one_is_freed_and_a_missing_one_mounted() -> None:
    full = SharedMemory("/dev/shm", error="No space left on device", full=True)
    assert shared_memory.judge(full, 1).advice.startswith("free some space")
    assert shared_memory.judge(SharedMemory("/dev/shm", error="gone"), 1).advice.startswith("mount a tmpfs")
