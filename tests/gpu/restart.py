"""How soon a killed rank trains again on a GPU, warm and cold, beside torchrun, and what the dead leave on the GPU."""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Iterator

from .check import Check, Place, Row, row
from .job import Job, Mark, kill

ALONE = "kill -9 to the first step, 1 rank with NCCL"
TWO = "kill -9 to the first step, 2 ranks with gloo on one GPU"
MEMORY = "memory of the killed rank is free before its successor's first allocation"
LEFT = "20 restarts leave no process on the GPU"
HOLD = 4  # GiB
ENDLESS = 1_000_000
ALLOWED = 64  # MiB that the GPU may hold more than before


def restarts(
    place: Place, name: str, count: int, ranks: int, launcher: str, start: str, *arguments: str
) -> tuple[list[float], list[Mark], Job]:
    """Seconds of each restart from the kill to the last rank's first step, and what ranks say of the memory."""
    options = (f"--max-restarts={count}", *(("--ft-warm-start", start) if launcher == "holdfast" else ()))
    seconds: list[float] = []
    with Job(
        place,
        name,
        "train.py",
        "--steps",
        str(ENDLESS),
        *arguments,
        launcher=launcher,
        ranks=ranks,
        options=options,
    ) as job:
        killed = 0.0
        for cycle in job.cycles():
            if killed:
                seconds.append(max(mark["time"] for mark in cycle.values()) - killed)
            if len(seconds) == count:
                break
            if start == "on" and not place.dry:
                job.until_standbys_wait()
            killed = kill(cycle[ranks - 1]["pid"])
    memory = [mark for mark in job.seen if mark["what"] == "memory" and mark["cycle"] > 0]
    if len(seconds) < count:
        raise RuntimeError(
            f"{name}: {len(seconds)} of {count} restarts; {job.said().strip().splitlines()[-1:]}"
        )
    return seconds, memory, job


def compared(place: Place, title: str, ranks: int, *arguments: str) -> Iterator[Row]:
    """Warm, cold and torchrun in one run; of one rank also what the dead leave on the GPU."""
    before = gpu()
    hold = ("--hold", str(HOLD)) if ranks == 1 else ()
    count = place.pick(20 if ranks == 1 else 5, 1)
    warm, memory, job = restarts(place, f"{ranks}-warm", count, ranks, "holdfast", "on", *arguments, *hold)
    starts = {record["start"] for record in job.journal("rank_start") if record["cycle"] > 0}
    if ranks == 1:
        yield from left(count, memory, before, gpu())
    others = {}
    if not place.dry:
        others["cold_s"] = restarts(place, f"{ranks}-cold", 3, ranks, "holdfast", "off", *arguments)[0]
        others["torchrun_s"] = restarts(place, f"{ranks}-torchrun", 3, ranks, "torchrun", "", *arguments)[0]
    medians = {name: statistics.median(found) for name, found in {"warm_s": warm, **others}.items()}
    yield row(
        title,
        starts == {"warm"},
        f"ranks of later cycles started {', '.join(sorted(starts))}",
        **medians,
        warm_longest_s=max(warm),
        ratio=medians["warm_s"] / medians.get("torchrun_s", math.nan),
    )


def left(count: int, memory: list[Mark], before: tuple[int, int], after: tuple[int, int]) -> Iterator[Row]:
    """What the dead have left on the GPU: `before` and `after` are MiB in use and processes."""
    at_once = sum(each["missing"] == 0 for each in memory)
    yield row(
        MEMORY,
        len(memory) == count and all(each["free"] for each in memory),
        "it was not within 20 s",
        at_once=f"{at_once} of {count}",
        longest_s=max((each["waited"] for each in memory), default=0.0),
    )
    yield row(
        LEFT,
        after[0] <= before[0] + ALLOWED and after[1] <= before[1],
        f"before: {before[0]} MiB, {before[1]} processes; after: {after[0]} MiB, {after[1]} processes",
        restarts=count,
        held_more_MiB=after[0] - before[0],
    )


def gpu() -> tuple[int, int]:
    """MiB of GPU memory in use, and how many processes use it: by nvidia-smi, which asks NVML."""

    def ask(*query: str) -> list[str]:
        line = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
        return subprocess.run(line, check=True, capture_output=True, text=True, timeout=20).stdout.split()

    return sum(map(int, ask("--query-gpu=memory.used"))), len(ask("--query-compute-apps=pid"))


def one_rank(place: Place) -> Iterator[Row]:
    yield from compared(place, ALONE, 1)


def two_ranks(place: Place) -> Iterator[Row]:
    yield from compared(place, TWO, 2, "--backend", "gloo")


CHECKS = [
    Check("restart-1-rank", "Restart", 110, (MEMORY, LEFT, ALONE), one_rank),
    Check("restart-2-ranks", "Restart", 80, (TWO,), two_ranks),
]
