"""`HoldfastCallback`: fault tolerance, preemption and straggler detection in one callback, with their defaults.

What always holds: at its first `setup` it puts the three callbacks into the trainer, so that each has its hooks, its
place and its state there as if it had been given itself. Does not cover: other arguments than the defaults; give the
three callbacks themselves then. Sections.
"""

from __future__ import annotations

from typing import Any

from .fault_tolerance_callback import FaultToleranceCallback
from .framework import PlacedCallback
from .preemption_callback import PreemptionCallback
from .straggler_det_callback import StragglerDetectionCallback


class HoldfastCallback(PlacedCallback):
    """`Trainer(callbacks=[HoldfastCallback()])`: hangs are found, preemptions saved, slow ranks named.

    The finished flag is made where FAULT_TOL_FINISHED_FLAG_FILE names it; timeouts are learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Any] = [
            FaultToleranceCallback(),
            PreemptionCallback(),
            StragglerDetectionCallback(),
        ]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raises RuntimeError if the trainer has one of the three already, and what their `setup` raises."""
        if all(part in trainer.callbacks for part in self._parts):  # a later fit: Lightning calls them
            return
        for part in self._parts:
            if any(isinstance(each, type(part)) for each in trainer.callbacks):
                raise RuntimeError(
                    f"HoldfastCallback has a {type(part).__name__}, and the trainer has another: leave one out"
                )
        # A new list: Lightning walks the old one now, so it does not call these.
        trainer.callbacks = [*trainer.callbacks, *self._parts]
        for part in self._parts:
            part.setup(trainer, pl_module, stage)
