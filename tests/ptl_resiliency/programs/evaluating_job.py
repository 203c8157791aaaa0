"""Validates with one callback, then tests with the other, on two ranks, and trains nothing. Argument: a folder.

Rank 1 hangs in a batch, in the first cycle of the validation, in the second one of the test.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
from lightning.pytorch.strategies import DDPStrategy

from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from tests.ptl_resiliency.small import TinyModel, trainer

FOLDER = Path(sys.argv[1])
RANK, CYCLE = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]


class Hanging(TinyModel):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if RANK == 1 and CYCLE == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        super().validation_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        if RANK == 1 and CYCLE == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        super().test_step(batch, batch_idx)


for what, kind in (("validate", FaultToleranceCallback), ("test", FaultToleranceSectionsCallback)):
    callback = kind(exp_dir=FOLDER / "state")
    job = trainer(FOLDER, callback, devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    getattr(job, what)(Hanging(), verbose=False)
    assert not callback.is_initialized
    print(f"rank {RANK} has done its {what}", flush=True)
