"""A rank is killed with -9: how long until every restarted rank has done its first all-reduce? (Cold start.)"""

from __future__ import annotations

import os
import re
import signal
import time

from benchmarks.launchers import HOLDFAST, TORCHRUN, command, running
from benchmarks.table import Row, median

JOINED = re.compile(r"joined (\d+) (\d+) (\d+) ([\d.]+)")


def once(launcher: list[str], ranks: int) -> float:
    """Seconds from the kill to the last rank's first all-reduce in the next cycle."""
    line = command(launcher, ranks, "all_reduce.py", "20000", options=("--max-restarts=1",))
    with running(line) as process:
        assert process.stdout is not None
        cycles: dict[int, dict[int, tuple[int, float]]] = {0: {}, 1: {}}
        killed = 0.0
        for text in process.stdout:
            found = JOINED.match(text)
            if found:
                cycle, rank, pid, at = int(found[1]), int(found[2]), int(found[3]), float(found[4])
                cycles[cycle][rank] = (pid, at)
            if not killed and len(cycles[0]) == ranks:
                killed = time.time()
                os.kill(cycles[0][ranks - 1][0], signal.SIGKILL)
            if len(cycles[1]) == ranks:
                return max(at for _, at in cycles[1].values()) - killed
    raise RuntimeError(f"{launcher} did not restart")


def measure(runs: int) -> list[Row]:
    """2 and 4 ranks, both launchers in turn."""
    rows = []
    for ranks in (2, 4):
        theirs, ours = [], []
        for _ in range(runs):
            theirs.append(once(TORCHRUN, ranks))
            ours.append(once(HOLDFAST, ranks))
        mine, peer = median(ours), median(theirs)
        what = f"kill -9 to the first all-reduce on all {ranks} restarted ranks, cold start"
        rows.append(Row(what, "s", mine, peer, "torchrun, store sharing off", "≤ 1.0 ×", mine <= peer))
    return rows
