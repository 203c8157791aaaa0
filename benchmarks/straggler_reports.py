"""What a straggler report costs: on rank 0 of a simulated job of 16,384 ranks, and between two real gloo ranks.

By itself: `python benchmarks/straggler_reports.py [--runs N] [--no-peer]`. 5 sections and 500 kernels on each rank.
The peer is NVRx's `ReportGenerator` on the same summaries; it makes no verdicts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself, nvrx
from benchmarks.table import Row, median

PROGRAMS = Path(__file__).resolve().parent / "programs"
PEER = f"NVRx {nvrx.VERSION}"
RANKS = 16_384
Figures = dict[str, float]


def simulated(python: str, program: str) -> Figures:
    """One run of rank 0 of the simulated job."""
    return _figures([_start(python, [program, str(RANKS)])])


def two_ranks(python: str, who: str) -> Figures:
    """One run of two real ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [_start(python, ["report_ranks.py", who], {**place, "RANK": str(rank)}) for rank in range(2)]
    return _figures(ranks)


def _start(
    python: str, arguments: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-W", "ignore", str(PROGRAMS / arguments[0]), *arguments[1:]],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )


def _figures(ranks: list[subprocess.Popen[str]]) -> Figures:
    """What rank 0 printed."""
    told = [rank.communicate(timeout=300)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{ranks[0].args}: exit codes {[rank.returncode for rank in ranks]}")
    figures: Figures = json.loads(told[0].splitlines()[-1])
    return figures


def measure(runs: int, peer: bool = True) -> list[Row]:
    """All figures, medians of `runs` runs; the contenders take turns."""
    theirs = nvrx.launcher() if peer else None
    seen: dict[tuple[str, str], list[Figures]] = {}
    for _ in range(runs):
        seen.setdefault(("ours", "many"), []).append(simulated(sys.executable, "report_rank_0.py"))
        seen.setdefault(("ours", "two"), []).append(two_ranks(sys.executable, "holdfast"))
        if theirs:
            seen.setdefault(("peer", "many"), []).append(simulated(theirs[0], "report_rank_0_nvrx.py"))
            seen.setdefault(("peer", "two"), []).append(two_ranks(theirs[0], "nvrx"))

    def row(text: str, unit: str, job: str, what: str, scale: float = 1, bound: float | None = None) -> Row:
        ours = median(one[what] for one in seen["ours", job]) * scale
        other = median(one[what] for one in seen["peer", job]) * scale if theirs else None
        aim = "" if bound is None else f"≤ {bound:g}"
        reached = None if bound is None else ours <= bound
        return Row(text, unit, ours, other, PEER if theirs else "", aim, reached)

    where = f"rank 0 of {RANKS:,} simulated ranks"
    return [
        row(f"straggler report, {where}", "ms", "many", "steady_ms", bound=60),
        row(f"first straggler report, {where}", "ms", "many", "first_ms"),
        row(
            "first straggler report, received by every other rank",
            "kB",
            "many",
            "first_received_others",
            1e-3,
            100,
        ),
        row(f"first straggler report, received by {where}", "MB", "many", "first_received_rank_0", 1e-6),
        row(f"straggler reports, extra memory of {where}", "MB", "many", "extra_mb", bound=150),
        row("straggler report, 2 gloo ranks, median", "ms", "two", "median", bound=3),
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, PEER)
