"""From the launcher's start to the script's first line, from the last rank's end to the launcher's, and log lines."""

from __future__ import annotations

from benchmarks.launchers import HOLDFAST, TORCHRUN, command, finish
from benchmarks.table import Row, median


def once(launcher: list[str], ranks: int) -> tuple[float, float, int]:
    """Seconds to the first line, seconds from the last line to the exit, lines on stderr."""
    stdout, stderr, began, ended = finish(command(launcher, ranks, "first_line.py"))
    times = [float(line) for line in stdout.split()]
    return min(times) - began, ended - max(times), len(stderr.splitlines())


def measure(runs: int) -> list[Row]:
    """Both launchers in turn, so that a drift of the machine's speed hits both."""
    ours, theirs = [], []
    for _ in range(runs):
        theirs.append(once(TORCHRUN, 2))
        ours.append(once(HOLDFAST, 2))
    start, end = median(run[0] for run in ours), median(run[1] for run in ours)
    peer_start, peer_end = median(run[0] for run in theirs), median(run[1] for run in theirs)
    lines, peer_lines = max(run[2] for run in ours), max(run[2] for run in theirs)
    soon = start <= 0.4 * peer_start
    what = "start to the script's first line, 2 ranks"
    return [
        Row(what, "s", start, peer_start, "torchrun", "≤ 0.4 ×", soon),
        Row("last rank done to the launcher's exit", "s", end, peer_end, "torchrun", "≤ 0.25 s", end <= 0.25),
        Row("log lines without trouble", "lines", lines, peer_lines, "torchrun", "≤ 2", lines <= 2),
    ]
