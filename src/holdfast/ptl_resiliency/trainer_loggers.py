"""Metrics of ours for all loggers of a trainer, now: `log_dict` of the module passes on one batch in fifty.

What always holds: a logger that raises is told of once, and neither the training nor the other loggers suffer.
Does not cover: the trainer's `callback_metrics`; what is given here cannot be monitored by other callbacks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any


class TrainerLoggers:
    """Called on rank 0 only."""

    def __init__(self, log: logging.Logger) -> None:
        """`log` is told of loggers that raise."""
        self._log = log
        self._told: set[int] = set()

    def give(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Give these to each logger, at the step that Lightning itself has for this batch."""
        if not metrics:
            return
        step = _step(trainer)
        for logger in trainer.loggers:
            try:
                logger.log_metrics(metrics={**metrics, "epoch": trainer.current_epoch}, step=step)
                logger.save()
            except Exception as error:
                self._tell(logger, error)

    def _tell(self, logger: object, error: Exception) -> None:
        if id(logger) not in self._told:
            self._told.add(id(logger))
            self._log.warning(
                "%s did not take the straggler metrics (%s: %s): they are missing there. Training goes on",
                type(logger).__name__,
                type(error).__name__,
                error,
            )


def _step(trainer: Any) -> int:
    """Lightning's own for its loggers. It has no public name; it differs from `global_step` with several optimizers."""
    step = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return int(trainer.global_step if step is None else step)
