"""A rank is killed with -9: how long until every restarted rank has done its first all-reduce?

Holdfast with standbys waiting, with none (ranks are forked when they are needed) and with warm start off; torchrun and
NVRx beside it, in turns of one job each. A rank is killed as soon as all ranks have joined, or all standbys wait.
By itself: `python benchmarks/restart.py [--runs N] [--no-peer]`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself, nvrx
from benchmarks.launchers import HOLDFAST, TORCHRUN, command, running
from benchmarks.standbys import until_all_wait
from benchmarks.table import Row, median, percentile

JOINED = re.compile(r"joined (\d+) (\d+) (\d+) ([\d.]+)")
RANKS = (2, 4, 8)
WARM, PEER = 10, 3  # restarts in each run
COLD = ("--ft-warm-start=off",)
NVRX = f"NVRx {nvrx.VERSION}"
NO_STORE_SHARING = "torchrun, store sharing off"
AIMS = {2: 6, 4: 10, 8: 15}  # of torchrun's time, one part in so many


def restarts(
    launcher: list[str],
    ranks: int,
    count: int,
    *options: str,
    standbys: bool = False,
    wait: float = 0.0,
    program: str = "all_reduce.py",
    **variables: str,
) -> list[float]:
    """For each of `count` restarts of one job, seconds from the kill to the last rank's first all-reduce.

    Args:
        standbys: Kill as soon as all standbys wait.
        wait: Seconds from the first all-reduce to the kill.
    """
    line = command(launcher, ranks, program, "1000000", options=(f"--max-restarts={count}", *options))
    seconds: list[float] = []
    with running(line, **variables) as process:
        assert process.stdout is not None
        killed = 0.0
        for pids, joined in cycles(process.stdout, ranks):
            if killed:
                seconds.append(joined - killed)
            if len(seconds) == count:
                return seconds
            if standbys:
                until_all_wait(process.pid, ranks)
            time.sleep(wait)
            killed = time.time()
            os.kill(pids[ranks - 1], signal.SIGKILL)
    raise RuntimeError(f"{launcher} did not restart for the {len(seconds) + 1}th time")


def cycles(lines: Iterator[str], ranks: int) -> Iterator[tuple[dict[int, int], float]]:
    """Cycle for cycle, once all have joined: the ranks' pids, and when the last one did."""
    pids: dict[int, int] = {}
    last, current = 0.0, -1
    for line in lines:
        found = JOINED.match(line)
        if not found:
            continue
        if int(found[1]) != current:
            pids, last, current = {}, 0.0, int(found[1])
        pids[int(found[2])], last = int(found[3]), max(last, float(found[4]))
        if len(pids) == ranks:
            yield pids, last


def once(launcher: list[str], ranks: int) -> float:
    """Of a job that is hit as soon as it trains."""
    return restarts(launcher, ranks, 1)[0]


def measure(runs: int, peer: bool = True) -> list[Row]:
    """With 2, 4 and 8 ranks."""
    theirs = nvrx.launcher() if peer else None
    return [row for ranks in RANKS for row in _rows(ranks, runs, theirs)]


def _rows(ranks: int, runs: int, theirs: list[str] | None) -> list[Row]:
    warm, forked, cold, torchrun, other = [], [], [], [], []
    for _ in range(runs):
        torchrun += restarts(TORCHRUN, ranks, PEER)
        warm += restarts(HOLDFAST, ranks, WARM, standbys=True)
        cold += restarts(HOLDFAST, ranks, PEER, *COLD)
        forked += restarts(HOLDFAST, ranks, WARM)
        if theirs:
            other += restarts(theirs, ranks, PEER)
    what = f"kill -9 to the first all-reduce on all {ranks} restarted ranks"
    mine, late, part = median(warm), percentile(warm, 99), AIMS[ranks]
    base, counts = median(torchrun), f"{len(warm)} restarts, torchrun {len(torchrun)}"
    aim, reached = f"≤ 1/{part} ×", mine <= base / part
    rows = [
        Row(what, "s", mine, base, NO_STORE_SHARING, aim, reached, note=counts),
        Row(f"{what}, 99th percentile", "s", late, None, "", "≤ 3 × the median", late <= 3 * mine),
        Row(f"{what}, no standby waiting", "s", median(forked), base, NO_STORE_SHARING),
        Row(
            f"{what}, cold start", "s", median(cold), base, NO_STORE_SHARING, "≤ 1.0 ×", median(cold) <= base
        ),
    ]
    if other:
        rows.insert(1, Row(what, "s", mine, median(other), NVRX))
    return rows


if __name__ == "__main__":
    by_itself.main(__doc__, measure, NVRX)
