"""How long after its limit a hang is found, and the script runs again, beside NVRx 0.4.1; default check interval.

By itself: `python benchmarks/hang_detection.py [--runs N] [--no-peer]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself, nvrx
from benchmarks.launchers import HOLDFAST, command, finish
from benchmarks.table import Row, median

LIMIT = 6.0  # seconds; above what a rank needs between two heartbeats in programs/hang_rank.py
PEER = f"NVRx {nvrx.VERSION}"
OPTIONS = (
    "--max-restarts=1",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=localhost:0",
    "--ft-param-initial_rank_heartbeat_timeout=600",
    f"--ft-param-rank_heartbeat_timeout={LIMIT}",
    f"--ft-param-rank_section_timeouts=step:{LIMIT}",
    "--ft-param-rank_out_of_section_timeout=600",
    "--ft-param-rank_termination_signal=SIGTERM",
)
KINDS = ("section", "heartbeat")


def once(launcher: list[str], who: str, kind: str) -> tuple[float, float]:
    """Seconds beyond the limit: until the rank is told to end, until the script runs again."""
    out, err, *_ = finish(command(launcher, 1, "hang_rank.py", who, kind, options=OPTIONS))
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"moment"')]
    moments = {one["moment"]: one["at"] for one in told}
    if "back" not in moments:
        raise SystemExit(f"{who}: the hang ({kind}) was not found:\n{err[-2000:]}")
    passed = moments["hangs"] + LIMIT
    return moments["signal"] - passed, moments["back"] - passed


def measure(runs: int, peer: bool = True) -> list[Row]:
    """Medians of `runs` runs; the contenders take turns, so that a slow minute hits both."""
    theirs_by = nvrx.launcher() if peer else None
    ours: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    theirs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            ours[kind].append(once(HOLDFAST, "holdfast", kind))
            if theirs_by:
                theirs[kind].append(once(theirs_by, "nvrx", kind))

    def row(what: str, kind: str, which: int, bound: float) -> Row:
        own = median(one[which] for one in ours[kind])
        other = median(one[which] for one in theirs[kind]) if theirs[kind] else None
        aim = f"≤ {bound:g}"
        return Row(what, "s", own, other, PEER if theirs[kind] else "", aim, own <= bound)

    return [
        *(row(f"hang ({kind}) to termination signal, beyond the limit", kind, 0, 0.1) for kind in KINDS),
        *(row(f"hang ({kind}) to restarted script, beyond the limit", kind, 1, 0.5) for kind in KINDS),
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, PEER)
