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
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.callbacks.callback_log import named
from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.straggler_settings import CONFIRMED, LOGGER, STOPS_ON, checked
from holdfast.callbacks.straggler_training import ReportReader, measure_from_forward, start_detector
from holdfast.patches import Patches
from holdfast.side_group import CollectiveFailed, SideGroup
from holdfast.straggler import log_texts
from holdfast.straggler.detector import Detector

from .checkpoints import save_last
from .framework import PlacedCallback, frameworks, refuse_untested, step_of_loggers

if TYPE_CHECKING:
    from holdfast.straggler.report import Report


class StragglerDetectionCallback(PlacedCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training."""

    place: ClassVar[int] = 20

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
        """The detector is initialised when a fit begins, and shut down when it ends.

        Args:
            report_time_interval: about how many seconds between reports; the first needs 16 steps. 0 is as often as
                possible.
            calc_relative_gpu_perf: score each GPU against the fastest one.
            calc_individual_gpu_perf: score each GPU against its own best report.
            num_gpu_perf_scores_to_print: how many of the worst and of the best scores each report lists in the log;
                0 lists them only when stragglers were found. None is 5.
            gpu_relative_perf_threshold: a relative score below it makes a straggler.
            gpu_individual_perf_threshold: an individual score below it makes a straggler.
            stop_if_detected: when there is a straggler (see `stop_on`), save a last checkpoint and end all ranks with
                exit code 1.
            enable_ptl_logging: give least, median and greatest scores to the trainer's loggers. The older documented
                signature has `logger_name` in this place; a text or None is taken as that.
            profiling_interval: of each GPU section's runs, every n-th is measured.
            logger_name: of the module `logging`; None is the root logger. While the program has set up no logging, the
                lines go to stderr, from INFO on; the root logger stays as it is.
            num_gpu_perf_scores_to_log: the older name of `num_gpu_perf_scores_to_print`.
            stop_on: "confirmed" stops when a score is below its threshold in three successive reports and a verdict
                names that rank or its node; "scores" when one report has a score below its threshold, as the documents
                of the original say.

        Raises:
            ValueError: an argument is not what is allowed, or no score at all is asked for.
        """
        super().__init__()
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
        self._running = False
        self._patches = Patches()
        self._side: SideGroup | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, if this is a fit. Raises RuntimeError if the detector is initialised already, and with a
        Lightning that was not tested."""
        if stage != "fit":
            return
        self._close()  # a fit that ended before it could be told
        refuse_untested()
        settings = self._settings
        start_detector(settings, "trainer.fit()")
        self._running = True
        self._patches.wrap(trainer.strategy, "training_step", _measuring(trainer.strategy))
        self._log = named(settings.logger_name)
        self._loggers = TrainerLoggers(self._log)
        self._reader = ReportReader(settings, self._log)
        if settings.stop_if_detected:
            self._side = SideGroup()
            if trainer.is_global_zero:
                self._log.info("stop_if_detected: the job ends %s", STOPS_ON[settings.stop_on])
        self.take_place(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make a report if one is due. Ends the process by SystemExit if it was to stop."""
        if not self._running or not Detector.initialized:  # the program may have shut it down
            return
        started = perf_counter()
        report = Detector.generate_report_if_interval_elapsed()
        if Detector.is_interval_elapsed():
            self._handle(trainer, report, started)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning tears nothing down after an exception."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End, if this was a fit."""
        if stage == "fit":
            self._close()

    def _handle(self, trainer: Any, report: Report | None, started: float) -> None:
        """A report was made on all ranks; rank 0 has it."""
        stragglers, metrics = (False, {}) if report is None else self._reader.read(report)
        # First of all: the others wait for it, and a logger may take its time.
        stop = self._agreed(stragglers)
        if self._settings.metrics:
            self._loggers.give(trainer, metrics)
        self._log.info(log_texts.processing_time(perf_counter() - started))
        if stop:
            self._stop(trainer)

    def _agreed(self, stragglers: bool) -> bool:
        """Whether to stop, as rank 0 found and all ranks know."""
        if self._side is None:
            return False
        try:
            return self._side.maximum([float(stragglers)])[0] > 0
        except CollectiveFailed as error:
            self._log.warning("The ranks could not be told whether to stop (%s). Training continues", error)
            self._side.close()
            self._side = None
            return False

    def _stop(self, trainer: Any) -> NoReturn:
        """The documented end: a last checkpoint, exit code 1."""
        self._log.error(log_texts.TERMINATING)
        trainer.should_stop = True
        try:
            path = save_last(trainer)
        except Exception as error:
            self._log.error("Not saved before terminating: %s", error)
        else:
            if trainer.is_global_zero and path:
                self._log.info("Saved %s before terminating", path)
            elif trainer.is_global_zero:
                self._log.warning(
                    "No checkpoint was saved: the trainer has no ModelCheckpoint that keeps any"
                )
        sys.exit(1)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they measure nothing yet."""
        state = {
            name: value for name, value in vars(self).items() if name not in ("_log", "_loggers", "_reader")
        }
        return {**state, "_running": False, "_patches": Patches(), "_side": None}

    def _close(self) -> None:
        self._patches.undo()
        if self._side is not None:
            self._side.close()
            self._side = None
        if self._running:
            self._running = False
            Detector.shutdown()


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
    """Metrics of ours for all loggers of a trainer, now: `log_dict` of the module passes on one batch in fifty.

    Called on rank 0 only.
    """

    def __init__(self, log: logging.Logger) -> None:
        """`log` gets a warning of each logger that raises."""
        self._log = log
        self._told: set[int] = set()

    def give(self, trainer: Any, metrics: Mapping[str, float]) -> None:
        """Give these to each logger, at the step that Lightning itself has for this batch."""
        if not metrics:
            return
        step = step_of_loggers(trainer)
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
                "%s did not take the straggler metrics (%s: %s): they are missing there. Training continues",
                type(logger).__name__,
                type(error).__name__,
                error,
            )
