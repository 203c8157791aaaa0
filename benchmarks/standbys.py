"""What the standbys of a warm start cost while they wait: memory (PSS) and CPU of them and their zygote, at 8 ranks."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from benchmarks.launchers import HOLDFAST, command, running
from benchmarks.table import Row

RANKS = 8
MIB = 1 << 20
WATCHED = 30.0  # seconds
CEILING = 120.0
POLL = 0.02


def reserve(launcher: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """A launcher's zygotes and its standbys, by their names."""
    found: dict[str, list[psutil.Process]] = {"zygote": [], "standby": []}
    for child in psutil.Process(launcher).children():
        with suppress(psutil.NoSuchProcess):
            if (name := child.name().removeprefix("hf-")) in found:
                found[name].append(child)
    return found["zygote"], found["standby"]


def until_all_wait(launcher: int, count: int) -> None:
    """Until so many standbys are there, and no zygote that is to take the place of theirs."""
    deadline = time.monotonic() + CEILING
    while True:
        zygotes, standbys = reserve(launcher)
        if len(zygotes) == 1 and len(standbys) == count:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(standbys)} of {count} standbys are there after {CEILING:.0f} s")
        time.sleep(POLL)


def measure(runs: int) -> list[Row]:
    """One run: memory does not depend on the machine's speed."""
    del runs
    line = command(HOLDFAST, RANKS, "all_reduce.py", "1000000")
    with running(line) as process:
        until_all_wait(process.pid, RANKS)
        zygotes, standbys = reserve(process.pid)
        memory = [pss(zygotes), pss(standbys)]
        before = cpu([*zygotes, *standbys])
        time.sleep(WATCHED)
        busy = (cpu([*zygotes, *standbys]) - before) / WATCHED
    what = f"zygote and {RANKS} standbys at {RANKS} ranks"
    note = f"zygote {memory[0]:.0f}, standbys {memory[1]:.0f}"
    return [
        Row(f"{what}, PSS", "MiB", sum(memory), note=note),
        Row(f"{what}, CPU", "%", 100 * busy, None, "", "≤ 0.1", 100 * busy <= 0.1),
    ]


def pss(processes: list[psutil.Process]) -> float:
    """MiB of them together."""
    return sum(float(one.memory_full_info().pss) for one in processes) / MIB


def cpu(processes: list[psutil.Process]) -> float:
    """CPU seconds they have used."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)
