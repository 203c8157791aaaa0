"""A training that only counts: two ranks in step, a "checkpoint" after each step, the documented interfaces.

plain_training.py FOLDER STEPS [FAULT ...]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.stop import StopPoint, position
from tests.integrations.nemo_run.stops_and_faults import ATTEMPT, CYCLE, RANK, fail_if_due, note


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
