"""Memory (PSS) and CPU of supervision: everything that is not a rank."""

from __future__ import annotations

import time

import psutil

from benchmarks.launchers import HOLDFAST, TORCHRUN, command, running
from benchmarks.standbys import reserve
from benchmarks.table import Row

MIB = 1 << 20
WATCHED = 20.0  # seconds over which the monitor's CPU time is taken


def started(process: psutil.Popen, ranks: int) -> None:
    """Wait until every rank is ready."""
    ready = 0
    while ready < ranks:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the launcher ended before its ranks were ready")
        ready += line.strip() == "ready"


def pss(launcher: list[str], ranks: int, *args: str) -> tuple[float, float]:
    """MiB of the launcher and its helpers, and the share of one CPU that the helpers (the monitor) use."""
    with running(command(launcher, ranks, "beat.py", *args)) as process:
        started(process, ranks)
        parent = psutil.Process(process.pid)
        # All but the ranks. A helper may have its launcher's command line; only ranks have a rank. Zygote and standbys
        # have figures of their own.
        spared = {one.pid for some in reserve(process.pid) for one in some}
        children = [child for child in parent.children(recursive=True) if child.pid not in spared]
        helpers = [child for child in children if "RANK" not in child.environ()]
        memory = sum(one.memory_full_info().pss for one in [parent, *helpers]) / MIB
        before, began = cpu(helpers), time.monotonic()
        time.sleep(WATCHED if helpers and ranks == 8 else 0)
        return memory, (cpu(helpers) - before) / (time.monotonic() - began)


def cpu(processes: list[psutil.Process]) -> float:
    """CPU seconds they have used."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def measure(runs: int) -> list[Row]:
    """One run each: memory does not depend on the machine's speed."""
    del runs
    four, _ = pss(HOLDFAST, 4, "holdfast")
    eight, busy = pss(HOLDFAST, 8, "holdfast")
    peer_four, _ = pss(TORCHRUN, 4)
    growth = (eight - four) / 4
    bound, percent = peer_four + 25, busy * 100
    return [
        Row(
            "launcher and monitor at 4 ranks, PSS",
            "MiB",
            four,
            peer_four,
            "torchrun",
            "≤ torchrun + 25",
            four <= bound,
        ),
        Row("growth for each further rank, PSS", "MiB", growth, None, "", "≤ 1", growth <= 1),
        Row("CPU of the monitor at 8 ranks", "%", percent, None, "", "≤ 0.2", percent <= 0.2),
    ]
