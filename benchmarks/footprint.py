"""Memory (PSS) and CPU of supervision: everything that is not a rank."""

from __future__ import annotations

import time

import psutil

from benchmarks.launchers import HOLDFAST, TORCHRUN, command, running
from benchmarks.standbys import MIB, cpu, reserve
from benchmarks.table import Row

WATCHED = 20.0  # seconds over which the monitor's CPU time is taken


def started(process: psutil.Popen, ranks: int) -> None:
    """Wait until every rank is ready."""
    ready = 0
    while ready < ranks:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the launcher ended before its ranks were ready")
        ready += line.strip() == "ready"


def pss(launcher: list[str], ranks: int, *args: str, program: str = "beat.py") -> tuple[float, float, float]:
    """MiB of the launcher and its helpers, MiB of the host of the ranks' store, and the share of one CPU that the
    helpers use."""
    with running(command(launcher, ranks, program, *args)) as process:
        started(process, ranks)
        parent = psutil.Process(process.pid)
        # All but the ranks, which have the program's command line. Zygote and standbys have figures of their own. A
        # host that was forked has a name, and the command line of a rank.
        spared = {one.pid for some in reserve(process.pid) for one in some}
        children = [child for child in parent.children(recursive=True) if child.pid not in spared]
        hosts = [one for one in children if "store" in one.name() or "store_host" in " ".join(one.cmdline())]
        helpers = [one for one in children if one not in hosts and program not in " ".join(one.cmdline())]
        memory = sum(one.memory_full_info().pss for one in [parent, *helpers]) / MIB
        store = sum(one.memory_full_info().pss for one in hosts) / MIB
        before, began = cpu(helpers), time.monotonic()
        time.sleep(WATCHED if helpers and ranks == 8 else 0)
        return memory, store, (cpu(helpers) - before) / (time.monotonic() - began)


def measure(runs: int) -> list[Row]:
    """One run each: memory does not depend on the machine's speed."""
    del runs
    four, _, _ = pss(HOLDFAST, 4, "holdfast")
    eight, _, busy = pss(HOLDFAST, 8, "holdfast")
    _, store, _ = pss(HOLDFAST, 4, program="meet.py")
    peer_four, _, _ = pss(TORCHRUN, 4)
    growth = (eight - four) / 4
    percent = busy * 100
    what = "launcher and monitor at 4 ranks, PSS"
    return [
        Row(what, "MiB", four, peer_four, "torchrun", "≤ 60", four <= 60),
        Row("host of the store of 4 ranks that use torch.distributed, PSS", "MiB", store),
        Row("growth for each further rank, PSS", "MiB", growth, None, "", "≤ 1", growth <= 1),
        Row("CPU of the monitor at 8 ranks", "%", percent, None, "", "≤ 0.2", percent <= 0.2),
    ]
