"""What a detection section costs the training, beside NVRx: measured, skipped, without a name, as a wrapped callable.

By itself: `python benchmarks/straggler.py [--runs N] [--no-peer]`. The peer needs a libcupti even
where sections are timed on the host only; it gets the fake one of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import by_itself, kernel_records, nvrx
from benchmarks.table import Row, median

PROGRAM = Path(__file__).resolve().parent / "programs" / "section_cost.py"
PEER = f"NVRx {nvrx.VERSION}"


def once(python: str, package: str, libraries: Path) -> dict[str, float]:
    """All figures of one run, in microseconds."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)} if package != "holdfast" else None
    command = [python, "-W", "ignore", str(PROGRAM), package]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(runs: int, peer: bool = True) -> list[Row]:
    """All figures, medians of `runs` runs; the contenders take turns."""
    theirs_by = nvrx.launcher() if peer else None
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as place:
        if theirs_by:
            kernel_records.build(Path(place))
        for _ in range(runs):
            ours.append(once(sys.executable, "holdfast", Path(place)))
            if theirs_by:
                theirs.append(once(theirs_by[0], "nvidia_resiliency_ext", Path(place)))

    def row(text: str, what: str, bound: float | None = None) -> Row:
        figure = median(one[what] for one in ours)
        other = median(one[what] for one in theirs) if theirs else None
        aim = "" if bound is None else f"≤ {bound:g}"
        return Row(
            text, "µs", figure, other, PEER if theirs else "", aim, None if bound is None else figure <= bound
        )

    return [
        row("straggler section, median", "section", 0.6),
        row("straggler section that is skipped, median", "skipped", 0.3),
        row("straggler section, every 10th measured, median", "every 10th"),
        row("straggler section without a name, median", "unnamed"),
        row("wrapped callable, more than the call itself, median", "wrapped"),
    ]


if __name__ == "__main__":
    by_itself.main(__doc__, measure, PEER)
