"""Whether it was an EarlyStopping callback of Lightning that ended a fit.

Such a training is finished; one that was stopped by its time or its user is not. What always holds: a stop that a
loaded checkpoint remembers is none of this fit. Does not cover: callbacks that are no subclass of Lightning's; a rank
whose own metric gave no reason to stop, in the first epoch.
"""

from __future__ import annotations

from typing import Any

from .framework import frameworks


class EarlyStops:
    """What the EarlyStopping callbacks of a trainer remembered when the fit began."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: dict[int, Any] = {}
        self.restored()

    def restored(self) -> None:
        """What they remember now is of earlier fits."""
        self._before = {id(each): _mark(each) for each in _of(self._trainer)}

    @property
    def happened(self) -> bool:
        """Whether one of them has ended this fit."""
        return bool(self._trainer.should_stop) and any(
            _mark(each) != self._before.get(id(each)) or _exhausted(each) for each in _of(self._trainer)
        )


def _of(trainer: Any) -> list[Any]:
    kinds = tuple(module.callbacks.EarlyStopping for module in frameworks())
    return [each for each in trainer.callbacks if isinstance(each, kinds)]


def _mark(callback: Any) -> Any:
    return callback.stopped_epoch, getattr(callback, "stopping_reason", None)


def _exhausted(callback: Any) -> bool:
    """For Lightning before 2.6, which tells no reason, and for the first epoch an epoch like "never"."""
    return not hasattr(callback, "stopping_reason") and callback.wait_count >= callback.patience
