"""Trains `Small` with `HoldfastCallback` on all ranks of the job. Arguments: a folder, seconds of a step, epochs.

With a fourth argument `hang` the last rank stops itself, in the first cycle, in the step after the 25th. With `slow`
rank 1 takes ten times as long for a step, and reports on stragglers come every 0.2 seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import bare_lightning  # noqa: F401, before all that loads Lightning
from lightning.pytorch.strategies import DDPStrategy

from holdfast.ptl_resiliency import HoldfastCallback, StragglerDetectionCallback
from tests.ptl_resiliency.small import Small, keeper, trainer

FOLDER, SECONDS, EPOCHS = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HANGS = sys.argv[4:] == ["hang"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and RANK == RANKS - 1

SLOW = sys.argv[4:] == ["slow"]


def step(number: int) -> None:
    if HANGS and number == 25:
        os.kill(os.getpid(), signal.SIGSTOP)
    if number == 12 and RANK == 0:
        print("STEP 12", flush=True)
    time.sleep(SECONDS * (10 if SLOW and RANK == 1 else 1))


bundle = HoldfastCallback()
if SLOW:
    bundle._parts[-1] = StragglerDetectionCallback(0.2)
job = trainer(
    FOLDER,
    bundle,
    keeper(FOLDER / "saved", every_n_train_steps=5),
    devices=RANKS,
    strategy=DDPStrategy(process_group_backend="gloo"),
    max_epochs=EPOCHS,
)
try:
    job.fit(Small(step), ckpt_path="last")
finally:
    print(f"rank {RANK} ends at {job.global_step}", flush=True)
