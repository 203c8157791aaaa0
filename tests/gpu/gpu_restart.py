"""Time to recover from a killed rank on a GPU, beside torchrun, and what killed ranks leave on the GPU."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .gpu_check import Check, Row, by_mode, is_dry, row
from .gpu_job import Job, Mark, kill

ALONE = "kill -9 to the first step, 1 rank with NCCL, warm"
TWO = "kill -9 to the first step, 2 ranks with gloo on one GPU, warm"
ALONE_COMPARED = "the same with 1 rank: cold start and torchrun"
TWO_COMPARED = "the same with 2 ranks: cold start and torchrun"
MEMORY = "GPU memory of a killed rank is free within 20 s"
LEFT = "20 restarts leave no process and no memory on the GPU"
HOLD = 4  # GiB of GPU memory that a rank holds
ALLOWED = 64  # MiB
SETTLES = 15.0  # seconds in which the driver frees what processes held
WITH_STANDBYS = 5  # restarts that wait for standbys; later ones are forked on demand
ENDLESS = ("--steps", "1000000")


def measure(
    folder: Path,
    name: str,
    count: int,
    ranks: int,
    *options: str,
    arguments: Sequence[str] = (),
    launcher: str = "holdfast",
) -> tuple[list[float], Job]:
    """Kill the last rank `count` times. Returns seconds from each kill to the last rank's first step."""
    limit = f"--max-restarts={count + 3}"  # a rank may fail by itself
    words = ("gpu_train.py", *ENDLESS, *arguments)
    seconds: list[float] = []
    with Job(folder, name, *words, launcher=launcher, ranks=ranks, options=(limit, *options)) as job:
        killed = 0.0
        for cycle in job.read_cycles():
            if killed:
                seconds.append(max(mark["time"] for mark in cycle.values()) - killed)
            if len(seconds) == count:
                break
            if "--ft-warm-start=on" in options and not is_dry() and len(seconds) < WITH_STANDBYS:
                job.wait_for_standbys()
            killed = kill(cycle[ranks - 1]["pid"])
    if len(seconds) < count:
        raise RuntimeError(f"{name}: {len(seconds)} of {count} restarts; {job.errors()}")
    return seconds, job


def one_rank(folder: Path) -> Iterator[Row]:
    before, count = read_gpu(), by_mode(20, 1)
    warm, job = measure(folder, "warm", count, 1, "--ft-warm-start=on", arguments=("--hold", str(HOLD)))
    yield _warm(ALONE, warm, job)
    yield _memory(count, [mark for mark in job.marks if mark["kind"] == "memory" and mark["cycle"] > 0])
    yield _left(count, before)
    yield _compare(folder, ALONE_COMPARED, warm, 1)


def two_ranks(folder: Path) -> Iterator[Row]:
    gloo = ("--backend", "gloo")
    warm, job = measure(folder, "warm", by_mode(5, 1), 2, "--ft-warm-start=on", arguments=gloo)
    yield _warm(TWO, warm, job)
    yield _compare(folder, TWO_COMPARED, warm, 2, *gloo)


def _warm(name: str, seconds: list[float], job: Job) -> Row:
    starts = {record["start"] for record in job.journal("rank_start") if record["cycle"] > 0}
    reason = f"starts after a restart: {', '.join(sorted(starts))}; {job.errors()}"
    first = seconds[:WITH_STANDBYS]
    figures = {"restarts": len(seconds), "median_s": statistics.median(first), "longest_s": max(seconds)}
    return row(name, starts == {"warm"}, reason, **figures)


def _compare(folder: Path, name: str, warm: list[float], ranks: int, *arguments: str) -> Row:
    """In the same run. A dry run does without: other checks start cold ranks and torchrun."""
    if is_dry():
        return row(name, True)
    median = statistics.median(warm[:WITH_STANDBYS])
    cold, _ = measure(folder, "cold", 2, ranks, "--ft-warm-start=off", arguments=arguments)
    peer, _ = measure(folder, "torchrun", 2, ranks, arguments=arguments, launcher="torchrun")
    figures = {"cold_s": statistics.median(cold), "torchrun_s": statistics.median(peer)}
    return row(name, True, **figures, warm_to_torchrun=median / figures["torchrun_s"])


def _memory(count: int, marks: list[Mark]) -> Row:
    at_once = sum(each["missing"] == 0 for each in marks)
    return row(
        MEMORY,
        len(marks) == count and all(each["free"] for each in marks),
        f"{len(marks)} of {count} restarts; {sum(not each['free'] for each in marks)} times it was not free",
        free_at_once=f"{at_once} of {count}",
        longest_s=max((each["waited"] for each in marks), default=0.0),
    )


def _left(count: int, before: tuple[int, int]) -> Row:
    began = time.monotonic()
    while True:
        after, waited = read_gpu(), time.monotonic() - began
        passed = after[0] <= before[0] + ALLOWED and after[1] <= before[1]
        if passed or waited > SETTLES:
            break
        time.sleep(0.5)
    reason = f"before: {before[0]} MiB, {before[1]} processes; after: {after[0]} MiB, {after[1]} processes"
    return row(LEFT, passed, reason, restarts=count, more_MiB=after[0] - before[0], freed_after_s=waited)


def read_gpu() -> tuple[int, int]:
    """MiB of GPU memory in use and number of processes on the GPU, by nvidia-smi.

    A container may hide the processes; the memory is counted in any case.
    """

    def query(what: str) -> list[str]:
        line = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
        done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=20)
        return done.stdout.splitlines()

    return sum(map(int, query("--query-gpu=memory.used"))), len(query("--query-compute-apps=pid"))


CHECKS = [
    Check("restart-1-rank", 150, (ALONE, MEMORY, LEFT, ALONE_COMPARED), one_rank),
    Check("restart-2-ranks", 90, (TWO, TWO_COMPARED), two_ranks),
]
COMPARISONS = {ALONE_COMPARED, TWO_COMPARED}
"""Rows that measure other ways to start; they prove nothing about warm start."""
