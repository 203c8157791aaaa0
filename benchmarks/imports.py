"""Imports that nobody waits for: torch's at the first start, and at a restart a module whose import takes 5 seconds."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.launchers import HOLDFAST, TORCHRUN, command, finish
from benchmarks.restart import restarts
from benchmarks.table import Row, median

SLEEPS = 5.0  # seconds
AIMS = {2: 0.65, 8: 0.4}


def measure(runs: int) -> list[Row]:
    """All in turns with torchrun."""
    return [row for ranks in AIMS for row in _starts(ranks, runs)] + [_slow_module()]


def _starts(ranks: int, runs: int) -> list[Row]:
    first, second, theirs = [], [], []
    for _ in range(runs):
        theirs.append(start(TORCHRUN, ranks))
        with (
            tempfile.TemporaryDirectory() as state
        ):  # nothing is known of the script, and then its imports are
            first.append(start(HOLDFAST, ranks, XDG_STATE_HOME=state))
            second.append(start(HOLDFAST, ranks, XDG_STATE_HOME=state))
    what, base, part = f"start to past `import torch` on all {ranks} ranks", median(theirs), AIMS[ranks]
    return [
        Row(
            f"{what}, {which}",
            "s",
            median(ours),
            base,
            "torchrun",
            f"≤ {part} ×",
            median(ours) <= part * base,
        )
        for which, ours in (("first job", first), ("next job", second))
    ]


def start(launcher: list[str], ranks: int, **more: str) -> float:
    """Seconds until the last rank has imported torch."""
    stdout, _, began, _ = finish(command(launcher, ranks, "past_torch.py"), **more)
    times = [float(line) for line in stdout.split()]
    if len(times) != ranks:
        raise RuntimeError(f"{len(times)} of {ranks} ranks have imported torch")
    return max(times) - began


def _slow_module() -> Row:
    with _installed("slow_to_import.py", f"import time\ntime.sleep({SLEEPS})\n") as variables:
        finish(command(HOLDFAST, 2, "slow_import.py", "5"), **variables)  # which learns it
        (ours,) = restarts(HOLDFAST, 2, 1, standbys=True, program="slow_import.py", **variables)
        (theirs,) = restarts(TORCHRUN, 2, 1, program="slow_import.py", **variables)
    what = f"kill -9 to the first all-reduce of 2 ranks that import a module of {SLEEPS:.0f} s"
    return Row(what, "s", ours, theirs, "torchrun", "≤ 1 s", ours <= 1.0)


@contextmanager
def _installed(name: str, text: str) -> Iterator[dict[str, str]]:
    """A module in the user's own site folder, which is elsewhere meanwhile: the variables that say so."""
    with tempfile.TemporaryDirectory() as base:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = Path(base, "lib", version, "site-packages")
        site.mkdir(parents=True)
        (site / name).write_text(text)
        # A virtual environment does not look there by itself.
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        yield {"PYTHONUSERBASE": base, "PYTHONPATH": path, "XDG_STATE_HOME": base}
