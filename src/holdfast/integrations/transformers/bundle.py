"""`HoldfastCallback`: fault tolerance, preemption and straggler detection in one callback, with their defaults.

What always holds: for one training the three callbacks are in the trainer as if they had been given themselves; one
that the trainer has already is not added. Does not cover: other arguments than the defaults. Sections.
"""

from __future__ import annotations

from .fault_tolerance_callback import FaultToleranceCallback
from .preemption_callback import PreemptionCallback
from .straggler_det_callback import StragglerDetectionCallback
from .training import SurroundingCallback

__all__ = ["HoldfastCallback"]


class HoldfastCallback(SurroundingCallback):
    """`Trainer(callbacks=[HoldfastCallback()])`: hangs are found, preemptions saved, slow ranks named.

    The finished flag is made where FAULT_TOL_FINISHED_FLAG_FILE names it; timeouts are learned.
    """

    def __init__(self) -> None:
        self.parts = (FaultToleranceCallback(), PreemptionCallback(), StragglerDetectionCallback())
