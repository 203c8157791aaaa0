"""A trainer's step, cheaply: Lightning's `global_step` looks it up through six objects each time.

What always holds: the number is `trainer.global_step`; where Lightning keeps it elsewhere one day, it is asked as
usual. Does not cover: a step counter that is replaced while a fit runs.
"""

from __future__ import annotations

from typing import Any


class Counter:
    """`completed` is the step."""

    completed = 0


class _Asking(Counter):
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def completed(self) -> int:  # type: ignore[override]
        return int(self._trainer.global_step)


def step_counter(trainer: Any) -> Any:
    """An object whose `completed` is the trainer's step, now and while it fits."""
    loop = trainer.fit_loop.epoch_loop
    try:
        if trainer.lightning_module.automatic_optimization:
            counter = loop.automatic_optimization.optim_progress.optimizer.step.total
        else:
            counter = loop.manual_optimization.optim_step_progress.total
        if counter.completed == trainer.global_step:
            return counter
    except AttributeError:
        pass
    return _Asking(trainer)
