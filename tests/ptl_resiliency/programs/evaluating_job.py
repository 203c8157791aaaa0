"""Validates or tests `TinyModel` on two ranks, and trains nothing. In the first cycle rank 1 hangs in a batch.

Arguments: a folder, `validate` or `test`, a callback.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import bare_lightning  # noqa: F401, before all that loads Lightning
import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy

from holdfast import ptl_resiliency
from tests.ptl_resiliency.conftest import TinyModel, quiet_arguments

FOLDER, WHAT, KIND = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK = int(os.environ["RANK"])


class Hanging(TinyModel):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        super().validation_step(batch, batch_idx)

    test_step = validation_step


callback = getattr(ptl_resiliency, KIND)(exp_dir=FOLDER / "state")
arguments = {**quiet_arguments(FOLDER), "devices": 2}
job = pl.Trainer(callbacks=[callback], strategy=DDPStrategy(process_group_backend="gloo"), **arguments)
getattr(job, WHAT)(Hanging(), verbose=False)
assert not callback.is_initialized
print(f"rank {RANK} has done its {WHAT}", flush=True)
