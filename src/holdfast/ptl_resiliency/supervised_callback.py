"""What the two fault-tolerance callbacks have in common: a fit's begin and end.

What always holds: only `fit` is supervised; validating, testing and predicting by themselves need no launcher. The
errors of a wrong start are raised in `setup`; from then on nothing raises because supervision fails. Limits are
learned and the flag is created before supervision ends, in `teardown`, or after an exception in `on_exception`,
where Lightning calls no `teardown`; what other callbacks save then is still supervised.

Does not cover: an `on_exception` of another callback that raises. Lightning then ends nothing; the next `setup` does.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import callback_log
from holdfast.callbacks.completion import Ending, why_complete
from holdfast.callbacks.documented_arguments import DocumentedArguments
from holdfast.callbacks.supervised_training import verify_environment
from holdfast.fault_tolerance.timeouts.learning_conditions import is_clean_stop
from holdfast.prefixed_log import Prefixed

from .after_batch import AfterBatchCallback
from .supervised_fit import SupervisedFit

_FOLDER = "ft_state"


class SupervisedCallback(DocumentedArguments, AfterBatchCallback):
    """Subclasses say what they do at the begin and the end of a fit, and when limits are learned."""

    TIMEOUTS_FILENAME: ClassVar[str]
    FT_DIR_NAME: ClassVar[str] = _FOLDER
    PART: ClassVar[str]
    """Which part of the limits is this callback's."""

    _fit: SupervisedFit | None = None

    @property
    def is_initialized(self) -> bool:
        """Whether a fit is supervised now."""
        return self._fit is not None and self._fit.client.is_initialized

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raises RuntimeError without `ft_launcher`, or without FAULT_TOL_FINISHED_FLAG_FILE where `autoresume` needs
        it, or where there are no limits at all; ValueError if states cannot be kept; RankMonitorClientError if the
        program uses a client of its own."""
        if stage != "fit":
            return
        self._end(trainer)  # of a fit that came to no end
        verify_environment(type(self).__name__, autoresume=self.autoresume)
        log = Prefixed(callback_log.named(self.logger_name), int(trainer.global_rank))
        self._fit = fit = SupervisedFit(self, trainer, log)
        try:
            self._load_limits(fit)
            self._begin(fit)
            self.enlist(trainer)
            fit.begin(self.simulated_fault_params, lambda: self._end(trainer))
        except BaseException:
            self._end(trainer)
            raise

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end of a fit without an exception."""
        fit = self._fit
        if stage != "fit" or fit is None:
            return
        try:
            self._conclude(fit, stopped=False)
            if self.autoresume and (why := why_complete(self._ending(fit))):
                fit.log.info("Training is complete (%s), so creating finished flag file.", why)
                if fit.rank == 0:
                    fit.create_flag()
        except Exception as error:
            fit.log.warning("the end of supervision failed: %r", error)
        finally:
            self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The end of a fit by an exception: a failure, or a clean stop like `sys.exit(0)`."""
        fit = self._fit
        if fit is None:
            return
        fit.failed = not is_clean_stop(exception)
        fit.ends_after_teardown = True
        try:
            if fit.failed:
                self._failed(fit, exception)
            else:
                self._conclude(fit, stopped=True)
        except Exception as error:
            fit.log.warning("the end of supervision failed: %r", error)
        finally:
            if fit.failed:
                fit.side.close()  # the others, should they ask this rank, then need not wait for it

    @abstractmethod
    def _begin(self, fit: SupervisedFit) -> None:
        """What this callback needs for a fit. May raise what `setup` may."""

    @abstractmethod
    def _conclude(self, fit: SupervisedFit, *, stopped: bool) -> None:
        """Learn what can be learned at a clean end; `stopped` by an exception."""

    @abstractmethod
    def _failed(self, fit: SupervisedFit, exception: BaseException) -> None:
        """A failure has ended the fit on this rank."""

    @abstractmethod
    def _has_limits(self, fit: SupervisedFit) -> bool:
        """Whether there is a limit at all."""

    @abstractmethod
    def _limits(self, fit: SupervisedFit) -> Any:
        """The limits in force, for people."""

    def _load_limits(self, fit: SupervisedFit) -> None:
        fit.load_limits(
            _folder_of(fit.trainer, self.exp_dir) / self.TIMEOUTS_FILENAME,
            self.PART,
            calculate=self.calculate_timeouts,
            limits=lambda: self._limits(fit),
            has_limits=lambda: self._has_limits(fit),
        )

    def _ending(self, fit: SupervisedFit) -> Ending:
        trainer = fit.trainer
        last_of_epoch = getattr(trainer.fit_loop.epoch_loop.batch_progress, "is_last_batch", True)
        return Ending(
            iterations=fit.each.batches,
            global_step=int(trainer.global_step),
            max_steps=trainer.max_steps,
            epoch=int(trainer.current_epoch),
            max_epochs=trainer.max_epochs,
            asked_to_stop=bool(trainer.should_stop),
            in_mid_epoch=not last_of_epoch,
            early_stopping=fit.early_stops.happened,
            failed=fit.failed,
        )

    def _end(self, trainer: Any) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            self.dismiss(trainer)
            fit.end()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_fit": None}


def _folder_of(trainer: Any, exp_dir: str | Path | None) -> Path:
    """The folder for states. Collective, as Lightning asks rank 0 for its `log_dir`."""
    if exp_dir is not None:
        return Path(exp_dir).absolute()
    return Path(trainer.log_dir or trainer.default_root_dir or ".").absolute() / _FOLDER
