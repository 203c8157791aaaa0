"""Imports that are done ahead: torch at the first start, and at a restart three frameworks that the script imports."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

import holdfast
from benchmarks.environments import beside
from benchmarks.launchers import HOLDFAST, TORCHRUN, command, finish
from benchmarks.restart import NO_STORE_SHARING, restarts
from benchmarks.table import Row, median

AIMS = {2: 0.65, 8: 0.4}
WAIT = 15.0  # seconds


def measure(runs: int) -> list[Row]:
    """All in turns with torchrun."""
    return [row for ranks in AIMS for row in _starts(ranks, runs)] + [_frameworks(runs)]


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


def _frameworks(runs: int) -> Row:
    """Ranks that are killed in the first job of a script that imports for seconds."""
    needed = [f"torch=={version('torch')}", "transformers", "datasets", "lightning", "rich", "PyYAML"]
    python = beside("frameworks", needed, alone=True)
    source = str(Path(holdfast.__file__).parents[1])
    ours, theirs = [], []
    for _ in range(runs):
        theirs += restarts([python, *TORCHRUN[1:]], 2, 1, program="frameworks.py")
        with tempfile.TemporaryDirectory() as state:  # nothing is known of the script
            known = {"XDG_STATE_HOME": state, "PYTHONPATH": source}
            ours += restarts([python, *HOLDFAST[1:]], 2, 1, wait=WAIT, program="frameworks.py", **known)
    what = "kill -9 to the first all-reduce of 2 ranks that import transformers, datasets and Lightning"
    mine, base = median(ours), median(theirs)
    note = f"{WAIT:g} s after the first steps of a script's first job"
    return Row(what, "s", mine, base, NO_STORE_SHARING, "≤ 1/20 ×", mine <= base / 20, note=note)
