"""What it costs a program that knows nothing of Holdfast to have its optimizer's steps counted.

By itself: `python benchmarks/optimizer_steps.py [--runs N]`.
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


def once() -> dict[str, float]:
    """Nanoseconds of one run with one rank."""
    out, err, *_ = finish(command(HOLDFAST, 1, "optimizer_steps_rank.py"))
    found = [line for line in out.splitlines() if line.startswith('{"more"')]
    if not found:
        raise SystemExit(f"no figures:\n{err[-2000:]}")
    figures: dict[str, float] = json.loads(found[-1])
    return figures


def measure(runs: int, peer: bool = False) -> list[Row]:
    """All figures, medians of `runs` runs. No peer does this."""
    seen = [once() for _ in range(runs)]
    more = median(each["more"] for each in seen) / 1e3
    plain = median(each["plain"] for each in seen) / 1e3
    first = median(each["first"] for each in seen) / 1e6
    note = f"beside the {plain:.0f} µs of the smallest SGD step"
    return [
        Row("counting an optimizer step, median", "µs", more, aim="≤ 1", reached=more <= 1, note=note),
        Row("the first optimizer step that is counted, more", "ms", first),
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, "no peer")
