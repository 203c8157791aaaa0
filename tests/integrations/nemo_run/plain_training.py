"""A training that only counts: two ranks in step, a "checkpoint" after each step, the documented interfaces.

plain_training.py FOLDER STEPS [FAULT ...]
The Lightning training beside it has the same faults, and writes the same list of events.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.stop import StopPoint, position

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


def main(folder: Path, steps: int, faults: list[str]) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    stop = StopPoint.find()
    assert stop is not None
    signal.signal(signal.SIGTERM, lambda number, frame: stop.notice(number))
    stop.begin()
    saved = folder / "saved"
    begun = int(saved.read_text()) if saved.exists() else 0
    note(folder, f"from step {begun}")
    for step in range(begun + 1, steps + 1):
        fail_if_due(folder, faults, step)
        in_step(folder, step)
        client.send_heartbeat()
        if RANK == 0:
            (folder / "saving").write_text(str(step))
            (folder / "saving").rename(saved)
        if stop.passes(position(step - begun)):
            note(folder, f"preempted at step {step}")
            sys.exit(0)
    stop.end()
    note(folder, f"finished at step {steps}")
    if RANK == 0:
        Path(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"]).touch()
    client.shutdown_workload_monitoring()


def in_step(folder: Path, step: int) -> None:
    """Both ranks come here before one continues; 0.1 s a step. Without torch: its import takes longer than all this."""
    time.sleep(0.1)
    place = folder / f"at-{ATTEMPT}-{CYCLE}-{step}-"
    Path(f"{place}{RANK}").touch()
    while not all(Path(f"{place}{rank}").exists() for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
