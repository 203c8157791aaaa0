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
from time import perf_counter
from typing import Any

from holdfast.callbacks.callback_log import named
from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.straggler_settings import CONFIRMED, LOGGER, STOPS_ON, checked
from holdfast.callbacks.straggler_training import ReportReader, measure_from_forward, start_detector
from holdfast.side_group import CollectiveFailed
from holdfast.straggler import log_texts
from holdfast.straggler.detector import Detector

from .training import SurroundingCallback, TrainCall

__all__ = ["StragglerDetectionCallback"]


class StragglerDetectionCallback(SurroundingCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training.

    The arguments are those of the Lightning callback of this name; `enable_ptl_logging` gives least, median and
    greatest scores to `trainer.log`. With `stop_if_detected` a last checkpoint is saved and all ranks end with exit
    code 1. Raises ValueError if an argument is not what is allowed.
    """

    def __init__(
        self,
        report_time_interval: float = 300.0,
        calc_relative_gpu_perf: bool = True,
        calc_individual_gpu_perf: bool = True,
        num_gpu_perf_scores_to_print: int | None = None,
        gpu_relative_perf_threshold: float = 0.7,
        gpu_individual_perf_threshold: float = 0.7,
        stop_if_detected: bool = False,
        enable_ptl_logging: bool | str | None = True,
        profiling_interval: int = 1,
        logger_name: str | None = LOGGER,
        *,
        num_gpu_perf_scores_to_log: int | None = None,
        stop_on: str = CONFIRMED,
    ) -> None:
        self._settings = checked(
            report_time_interval,
            calc_relative_gpu_perf,
            calc_individual_gpu_perf,
            num_gpu_perf_scores_to_print,
            gpu_relative_perf_threshold,
            gpu_individual_perf_threshold,
            stop_if_detected,
            enable_ptl_logging,
            profiling_interval,
            logger_name,
            num_gpu_perf_scores_to_log,
            stop_on,
        )
        self._running = self._stops = False

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError if the detector is initialised already."""
        settings = self._settings
        start_detector(settings, "trainer.train()")
        self._running, self._stops = True, False
        self._has_logged_failure = False
        training.patches.wrap(training.trainer, "compute_loss", _measured)
        self._log = named(settings.logger_name)
        self._reader = ReportReader(settings, self._log)
        if settings.stop_if_detected and training.rank == 0:
            self._log.info("stop_if_detected: the job ends %s", STOPS_ON[settings.stop_on])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make a report if one is due."""
        training = self._training
        if training is None or not Detector.initialized:  # the program may have shut it down
            return
        started = perf_counter()
        report = Detector.generate_report_if_interval_elapsed()
        if not Detector.is_interval_elapsed():
            return
        stragglers, metrics = False, dict[str, float]()
        if report is not None:  # on rank 0
            try:
                stragglers, metrics = self._reader.read(report)
            except Exception as error:
                self._log_failure(error)
        # First of all: the others wait for it, and what takes the metrics may take its time.
        if self._settings.stop_if_detected and self._agreed(training, stragglers):
            self._stops = True
            self._log.error(log_texts.TERMINATING)
        if metrics and self._settings.metrics:
            self._give(training.trainer, control, metrics)
        self._log.info(log_texts.processing_time(perf_counter() - started))
        if self._stops:
            control.should_training_stop = True
            # What is due at the epoch's end comes after this; one save is enough.
            control.should_save = not float(state.epoch or 0).is_integer()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the last step of an epoch was the place."""
        if self._stops:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raises SystemExit(1) if the training was to stop."""
        if self._stops and self._training is not None:
            if self._training.rank == 0:
                self._log.info("Saved checkpoint-%d before terminating", state.global_step)
            raise SystemExit(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raises SystemExit(1) if the training was to stop and another decided that nothing is saved."""
        if self._stops:
            self._log.warning("No checkpoint was saved before terminating")
            raise SystemExit(1)

    def failed(self, training: TrainCall, error: BaseException) -> None:
        if self._stops and not isinstance(error, SystemExit):
            self._log.error("Not saved before terminating: %s", error)

    def end(self, training: TrainCall) -> None:
        self._stops = False
        if self._running:
            self._running = False
            Detector.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        state = {
            name: value for name, value in super().__getstate__().items() if name not in ("_log", "_reader")
        }
        return {**state, "_running": False, "_stops": False}

    def _agreed(self, training: TrainCall, stragglers: bool) -> bool:
        """Whether to stop, as rank 0 found and all ranks know."""
        if training.side.failed:
            return False
        try:
            return training.side.maximum([float(stragglers)])[0] > 0
        except CollectiveFailed as error:
            self._log.warning("The ranks could not be told whether to stop (%s). Training continues", error)
            return False

    def _give(self, trainer: Any, control: Any, metrics: dict[str, float]) -> None:
        """To rank 0's loggers only: what they ask for in return, the other ranks would not do."""
        asked, whole = dict(vars(control)), trainer.control
        try:
            trainer.log(dict(metrics))
        except Exception as error:
            self._log_failure(error)
        finally:
            vars(control).update(asked)
            trainer.control = whole

    def _log_failure(self, error: Exception) -> None:
        if not self._has_logged_failure:
            self._has_logged_failure = True
            self._log.warning(
                "a straggler report failed (%s: %s). Training continues", type(error).__name__, error
            )


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
