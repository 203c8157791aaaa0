"""`StragglerDetectionCallback`: straggler reports of a `Trainer`, in its log and its metrics; stops it if asked.

Measured is `trainer.compute_loss` while the model trains. DistributedDataParallel may first give all ranks rank 0's
buffers, where ranks wait for one another, so there the section begins where the wrapper calls the model.

What always holds: all ranks stop after the same step or none does; after the training the detector is shut down and the
trainer as it was; a failure of reports is logged once and the training continues.
Does not cover: evaluation and prediction; weights that are gathered in the forward pass (FSDP); a stop under
`save_strategy="best"`, which may end without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.stragglers import (
    StragglerArguments,
    StragglerDetection,
    measure_from_forward,
)
from holdfast.straggler.detector import Detector

from .training import SurroundingCallback, TrainCall

__all__ = ["StragglerDetectionCallback"]


class StragglerDetectionCallback(StragglerArguments, SurroundingCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training.

    The constructor describes the arguments; `enable_ptl_logging` gives the scores to `trainer.log`.
    """

    _run: StragglerDetection | None = None
    _stops = False

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError if the detector is initialised already."""
        self._run = StragglerDetection(self._settings, training.rank, "trainer.train()")
        training.patches.wrap(training.trainer, "compute_loss", _measured)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make a report if one is due."""
        training, run = self._training, self._run
        if training is None or run is None:
            return
        if run.after_step(lambda metrics: _give(training.trainer, control, metrics)):
            self._stops = control.should_training_stop = True
            # What is due at the epoch's end comes after this; one save is enough.
            control.should_save = not float(state.epoch or 0).is_integer()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the last step of an epoch was the place."""
        if self._stops:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raises SystemExit(1) if the training was to stop."""
        if self._stops and self._training is not None and self._run is not None:
            if self._training.rank == 0:
                self._run.log.info("Saved checkpoint-%d before terminating", state.global_step)
            raise SystemExit(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read the last report. Raises SystemExit(1) if the training was to stop and another decided that nothing is
        saved."""
        if self._run is not None:
            self._run.finish()
        if self._stops and self._run is not None:
            self._run.log.warning("No checkpoint was saved before terminating")
            raise SystemExit(1)

    def failed(self, training: TrainCall, error: BaseException) -> None:
        if self._stops and self._run is not None and not isinstance(error, SystemExit):
            self._run.log.error("Not saved before terminating: %s", error)

    def end(self, training: TrainCall) -> None:
        self._stops = False
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None, "_stops": False}


def _give(trainer: Any, control: Any, metrics: dict[str, float]) -> None:
    """To rank 0's loggers only: what they ask for in return, the other ranks would not do."""
    asked, whole = dict(vars(control)), trainer.control
    try:
        trainer.log(dict(metrics))
    finally:
        vars(control).update(asked)
        trainer.control = whole


def _measured(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `compute_loss` as a section, while the model trains and the detector is initialised."""
    from torch.nn.parallel import DistributedDataParallel

    model = args[0] if args else kwargs.get("model")
    if not Detector.initialized or not getattr(model, "training", False):
        return original(*args, **kwargs)
    if isinstance(model, DistributedDataParallel):
        return measure_from_forward(model.module, lambda: original(*args, **kwargs))
    with Detector.detection_section(SECTION):
        return original(*args, **kwargs)
