"""`StragglerDetectionCallback`: straggler reports of a Lightning trainer, in its log and loggers; stops it if asked.

What is measured is the model's `training_step`, as the trainer's strategy calls it. A strategy that is Lightning's own
calls it through the wrapped model, and DistributedDataParallel first gives all ranks rank 0's buffers (those of batch
norm, say). There the ranks wait for the one that comes last, and in a section around all of it that one would look
fast, and the others slow. So the section begins where the wrapper calls the model, by a hook of torch's modules. Where
the model is not wrapped, and of a strategy with a way of its own (NeMo's), the section is the whole of the strategy's
method.

What always holds: all ranks stop in the same step or none does; after the fit, however it ended, the detector is shut
down and the strategy as it was; outside of a step the model has no hook of ours, so that it can be pickled and copied;
a logger that raises is reported once, and neither the training nor the other loggers suffer.
Does not cover: validation, test and prediction. Work of several GPUs that wait for one another within a kernel. Waiting
within the method: weights that are gathered (FSDP), the backward of manual optimization. The trainer's
`callback_metrics`: other callbacks cannot monitor what is given to the loggers here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.stragglers import (
    StragglerArguments,
    StragglerDetection,
    measure_from_forward,
)
from holdfast.patches import Patches
from holdfast.straggler.detector import Detector

from .checkpoints import save_last
from .framework import PlacedCallback, frameworks, refuse_untested, step_of_loggers


class StragglerDetectionCallback(StragglerArguments, PlacedCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training.

    The constructor describes the arguments.
    """

    place: ClassVar[int] = 20
    _run: StragglerDetection | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, if this is a fit. Raises RuntimeError if the detector is initialised already, and with a
        Lightning that was not tested."""
        if stage != "fit":
            return
        self._close()  # an earlier fit may have ended without the call that ends this
        refuse_untested()
        self._patches = Patches()
        self._run = StragglerDetection(self._settings, int(trainer.global_rank), "trainer.fit()")
        self._patches.wrap(trainer.strategy, "training_step", _measuring(trainer.strategy))
        self._loggers = TrainerLoggers(self._run.log)
        self.take_place(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make a report if one is due. Ends the process by SystemExit if it was to stop."""
        run = self._run
        if run is not None and run.after_step(self._loggers.of_this_step(trainer)):
            self._stop(trainer, run.log)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning tears nothing down after an exception."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End, if this was a fit."""
        if stage == "fit":
            self._close()

    def _stop(self, trainer: Any, log: logging.Logger) -> NoReturn:
        """The documented end: a last checkpoint, exit code 1."""
        trainer.should_stop = True
        try:
            path = save_last(trainer)
        except Exception as error:
            log.error("Not saved before terminating: %s", error)
        else:
            if trainer.is_global_zero and path:
                log.info("Saved %s before terminating", path)
            elif trainer.is_global_zero:
                log.warning("No checkpoint was saved: the trainer has no ModelCheckpoint that keeps any")
        sys.exit(1)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they measure nothing yet."""
        working = ("_run", "_patches", "_loggers")
        return {name: value for name, value in vars(self).items() if name not in working}

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._patches.undo()
            run.close()


def _measuring(strategy: Any) -> Callable[..., Any]:
    """Calls the strategy's `training_step` as a section, while the detector is initialised."""
    known = [module.strategies.Strategy.training_step for module in frameworks()]
    own_way = type(strategy).training_step not in known

    def measured(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not Detector.initialized:
            return original(*args, **kwargs)
        model = strategy.lightning_module
        # In a call: before the first one, Lightning has not wrapped the model yet.
        if own_way or strategy.model is model:
            with Detector.detection_section(SECTION):
                return original(*args, **kwargs)
        return measure_from_forward(model, lambda: original(*args, **kwargs))

    return measured


class TrainerLoggers:
    """Metrics of ours for all loggers of a trainer: `log_dict` of the module passes on one batch in fifty.

    Called on rank 0 only.
    """

    def __init__(self, log: logging.Logger) -> None:
        """`log` gets a warning of each logger that raises."""
        self._log = log
        self._told: set[int] = set()

    def of_this_step(self, trainer: Any) -> Callable[[Mapping[str, float]], None]:
        """Gives metrics to each logger, now or later, at the step that Lightning itself has for the batch of now."""
        step, epoch = step_of_loggers(trainer), trainer.current_epoch

        def give(metrics: Mapping[str, float]) -> None:
            for logger in trainer.loggers:
                try:
                    logger.log_metrics(metrics={**metrics, "epoch": epoch}, step=step)
                    logger.save()
                except Exception as error:
                    self._tell(logger, error)

        return give

    def _tell(self, logger: object, error: Exception) -> None:
        if id(logger) not in self._told:
            self._told.add(id(logger))
            self._log.warning(
                "%s did not take the straggler metrics (%s: %s): they are missing there. Training continues",
                type(logger).__name__,
                type(error).__name__,
                error,
            )
