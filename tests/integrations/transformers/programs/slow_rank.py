"""One of two ranks that train with `HoldfastCallback`; rank 1 is slow, so the job stops. Argument: a folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.integrations.transformers import HoldfastCallback, StragglerDetectionCallback
from tests.integrations.transformers.small import trainer

made = trainer(
    Path(sys.argv[1]),
    [HoldfastCallback(), StragglerDetectionCallback(0.2, stop_if_detected=True, stop_on="scores")],
    max_steps=2000,
    ddp_backend="gloo",
)


def slowly(*_: Any) -> None:
    time.sleep(0.04 if os.environ["RANK"] == "1" else 0.004)


made.model.layer.register_forward_pre_hook(slowly)
made.train()
