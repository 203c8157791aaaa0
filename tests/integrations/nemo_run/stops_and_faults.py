"""What the two trainings of these tests have in common: faults that happen a number of times, and a list of events."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

RANK = int(os.environ.get("RANK", 0))
ATTEMPT = int(os.environ.get("SLURM_RESTART_COUNT", 0))
CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def note(folder: Path, what: str) -> None:
    """A line of `folder`/events, which says when it was: attempt, restart, rank."""
    with (folder / "events").open("a") as events:
        events.write(f"{ATTEMPT}.{CYCLE} rank {RANK}: {what}\n")


def fail_if_due(folder: Path, faults: list[str], step: int) -> None:
    """`hang:STEP`, `exit:STEP` or `exit:STEP:TIMES`: rank 1 hangs, or ends with 3, at its first TIMES comings there."""
    for fault in faults:
        kind, due, *times = fault.split(":")
        used = len(list(folder.glob(f"{kind}-{due}-*")))
        if RANK == 1 and int(due) == step and used < int(times[0] if times else 1):
            (folder / f"{kind}-{due}-{used}").touch()
            note(folder, f"{kind} at step {step}")
            if kind == "hang":
                signal.pause()
            sys.exit(3)
