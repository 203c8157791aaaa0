"""What the four Lightning callbacks together cost in each training step of 2 ms, under the launcher.

The peer are four empty callbacks: what Lightning itself takes for four that do nothing. (NVRx has no figure here: two
of its callbacks need a GPU, and it has none for preemption.)
By itself: `python benchmarks/lightning_callbacks.py [--runs N]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself
from benchmarks.launchers import HOLDFAST, command, finish
from benchmarks.table import Row, median

LIMITS = ("--ft-rank-section-timeouts=setup:600,step:600,checkpointing:600",)

AIM = 100  # microseconds
PROCESSES = 5


def measure(runs: int, peer: bool = True) -> list[Row]:
    """Steps with and without the callbacks take turns; each turn is compared with its own steps without.

    The median over all turns of several processes: where in memory things lie, which differs between processes, is
    worth as much as what is measured.
    """
    turns = [turn for _ in range(PROCESSES) for turn in _turns(runs)]
    more = median([ours - without for without, ours, _ in turns])
    empty = median([idle - without for without, _, idle in turns])
    return [
        Row(
            "four Lightning callbacks, more for a step",
            "µs",
            1e6 * more,
            1e6 * empty,
            "four empty callbacks",
            aim=f"≤ {AIM:g}",
            reached=1e6 * more <= AIM,
        )
    ]


def _turns(number: int) -> list[tuple[float, float, float]]:
    """Of one process: seconds per step without callbacks, with ours, and with empty ones, for each turn."""
    out, err, *_ = finish(command(HOLDFAST, 1, "lightning_rank.py", str(number), options=LIMITS))
    found = [line for line in out.splitlines() if line.startswith('{"without"')]
    if not found:
        raise SystemExit(f"no figures:\n{err[-2000:]}")
    seconds = json.loads(found[-1])
    return list(zip(seconds["without"], seconds["with"], seconds["empty"], strict=True))


if __name__ == "__main__":
    by_itself.main(__doc__, measure, "four empty callbacks (no effect: they are always measured)")
