"""What a heartbeat and a section edge cost the training, beside NVRx 0.4.1 (each under its own launcher).

By itself: `python benchmarks/heartbeat.py [--runs N] [--no-peer]`.
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

Figures = dict[str, dict[str, float]]
PEER = f"NVRx {nvrx.VERSION}"
OPTIONS = (
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=localhost:0",
    "--ft-param-initial_rank_heartbeat_timeout=600",
    "--ft-param-rank_heartbeat_timeout=600",
    "--ft-param-rank_section_timeouts=step:600",
    "--ft-param-rank_out_of_section_timeout=600",
)


def once(launcher: list[str], who: str, situation: str) -> Figures:
    """Microseconds of one run with one rank: heartbeat and edge, each median, p99 and mean."""
    out, err, *_ = finish(command(launcher, 1, "heartbeat_rank.py", who, situation, options=OPTIONS))
    found = [line for line in out.splitlines() if line.startswith('{"heartbeat"')]
    if not found:
        raise SystemExit(f"{who}: no figures:\n{err[-2000:]}")
    # The peer's log may continue the line: its ranks and monitors share a pipe.
    figures: Figures = json.JSONDecoder().raw_decode(found[-1])[0]
    return figures


def measure(runs: int, peer: bool = True) -> list[Row]:
    """All figures, medians of `runs` runs; the contenders take turns, so that a slow minute hits both."""
    theirs_by = nvrx.launcher() if peer else None
    seen: dict[tuple[str, str], list[Figures]] = {}
    for _ in range(runs):
        for situation in ("idle", "stopped", "busy"):
            seen.setdefault(("holdfast", situation), []).append(once(HOLDFAST, "holdfast", situation))
            if theirs_by and situation != "stopped":  # its rank blocks in the first heartbeat
                seen.setdefault(("nvrx", situation), []).append(once(theirs_by, "nvrx", situation))

    def figure(who: str, situation: str, call: str, kind: str) -> float | None:
        values = [one[call][kind] for one in seen.get((who, situation), [])]
        return median(values) if values else None

    def row(what: str, situation: str, call: str, kind: str, bound: float) -> Row:
        ours = figure("holdfast", situation, call, kind)
        theirs = figure("nvrx", situation, call, kind)
        assert ours is not None
        reached = ours <= bound and (theirs is None or kind != "median" or theirs >= 40 * ours)
        aim = f"≤ {bound:g}" + (", 40× cheaper" if theirs is not None and kind == "median" else "")
        note = f"{theirs / ours:.0f}× cheaper" if theirs is not None else ""
        return Row(what, "µs", ours, theirs, PEER if theirs is not None else "", aim, reached, note)

    return [
        row("heartbeat, median", "idle", "heartbeat", "median", 1.0),
        row("heartbeat, p99", "idle", "heartbeat", "p99", 5.0),
        row("section start or end, median", "idle", "edge", "median", 1.5),
        row("heartbeat with the monitor stopped, median", "stopped", "heartbeat", "median", 1.0),
        row("heartbeat with all cores busy, mean", "busy", "heartbeat", "mean", 5.0),
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, PEER)
