"""What the two fault-tolerance callbacks have in common: a fit's begin and end.

What always holds: only `fit` is supervised; validating, testing and predicting by themselves need no launcher. The
errors of a wrong start are raised in `setup`; from then on nothing raises because supervision fails. Limits are
learned and the flag is created before supervision ends, in `teardown`, or after an exception in `on_exception`,
where Lightning calls no `teardown`; what other callbacks save then is still supervised.

Does not cover: an `on_exception` of another callback that raises. Lightning then ends nothing; the next `setup` does.
Early stopping by callbacks that are no subclass of Lightning's; a rank whose own metric gave no reason to stop, in the
first epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import callback_log
from holdfast.callbacks.arguments import DocumentedArguments
from holdfast.callbacks.completion import Ending, why_complete
from holdfast.callbacks.supervised_training import SupervisedTraining, verify_environment
from holdfast.fault_tolerance.timeouts.learning_conditions import is_clean_stop
from holdfast.patches import Patches
from holdfast.prefixed_log import Prefixed

from .checkpoints import keep_whole
from .framework import PlacedCallback, ended_mid_epoch, is_a, refuse_untested

_FOLDER = "ft_state"


class SupervisedFit(SupervisedTraining):
    """One fit under supervision, from `setup` to its end, which may be called at any time and twice.

    Made on all ranks together. Raises RankMonitorClientError without `ft_launcher`.
    """

    def __init__(self, user: object, trainer: Any, log: Prefixed) -> None:
        super().__init__(user, int(trainer.global_rank), log)
        self.trainer = trainer
        self.patches = Patches()
        self.batches = 0
        """Training batches of this fit so far, with the one that runs."""
        self.ends_after_teardown = False
        """An exception ended the fit: Lightning calls the strategy's `teardown` next, and no `teardown` of ours."""
        self._stops_before: dict[int, Any] = {}
        self.restored()

    def begin(self, at_the_end: Callable[[], None]) -> None:
        """Whole checkpoints from now on."""
        keep_whole(self.trainer, self.patches)
        self.patches.wrap(self.trainer.strategy, "teardown", self._after_strategy(at_the_end))

    def restored(self) -> None:
        """The states of a checkpoint are loaded: a stop that it remembers is none of this fit."""
        self._stops_before = {id(each): _stop_of(each) for each in _early_stopping(self.trainer)}

    @property
    def stopped_early(self) -> bool:
        """Whether an EarlyStopping callback has ended this fit; such a training is finished."""
        return bool(self.trainer.should_stop) and any(
            self._stops_before.get(id(each)) != _stop_of(each) or _exhausted(each)
            for each in _early_stopping(self.trainer)
        )

    def end(self) -> None:
        """No more supervision of this fit."""
        self.patches.undo()
        super().end()

    def _after_strategy(self, at_the_end: Callable[[], None]) -> Callable[..., Any]:
        def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if self.ends_after_teardown:
                    at_the_end()

        return around


def _early_stopping(trainer: Any) -> list[Any]:
    return [each for each in trainer.callbacks if is_a(each, "EarlyStopping")]


def _stop_of(callback: Any) -> Any:
    """What an EarlyStopping callback remembers of a stop."""
    return callback.stopped_epoch, getattr(callback, "stopping_reason", None)


def _exhausted(callback: Any) -> bool:
    """For Lightning before 2.6, which tells no reason, and for the first epoch an epoch like "never"."""
    return not hasattr(callback, "stopping_reason") and callback.wait_count >= callback.patience


class SupervisedCallback(DocumentedArguments, PlacedCallback):
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
        it, or where there are no limits at all, or with a Lightning that was not tested; ValueError if states cannot be
        kept; RankMonitorClientError if the program uses a client of its own."""
        if stage != "fit":
            return
        self._end()  # of a fit that came to no end
        refuse_untested()
        log = Prefixed(callback_log.named(self.logger_name), int(trainer.global_rank))
        verify_environment(
            type(self).__name__, autoresume=self.autoresume is True, rank=trainer.global_rank, log=log
        )
        self._fit = fit = SupervisedFit(self, trainer, log)
        try:
            fit.load_limits(
                _folder_of(trainer, self.exp_dir) / self.TIMEOUTS_FILENAME,
                self.PART,
                calculate=self.calculate_timeouts,
                limits=lambda: self._limits(fit),
                has_limits=lambda: self._has_limits(fit),
            )
            fit.begin(self._end)  # first: a checkpoint counts as complete when it has its name
            self._begin(fit)
            self.take_place(trainer)
            fit.simulate(self.simulated_fault_params)
        except BaseException:
            self._end()
            raise

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """States are restored; the first batch comes."""
        if self._fit is not None:
            self._fit.restored()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch more."""
        if self._fit is not None:
            self._fit.batches += 1

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end of a fit without an exception."""
        fit = self._fit
        if stage != "fit" or fit is None:
            return
        try:
            self._conclude(fit, stopped=False)
            if self.makes_flag and (why := why_complete(_ending(fit))):
                fit.log.info("Training is complete (%s), so creating finished flag file.", why)
                if fit.rank == 0:
                    fit.create_flag()
        except Exception as error:
            fit.log.warning("the end of supervision failed: %r", error)
        finally:
            self._end()

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

    def _end(self) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.end()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**vars(self), "_fit": None}


def _ending(fit: SupervisedFit) -> Ending:
    trainer = fit.trainer
    return Ending(
        iterations=fit.batches,
        global_step=int(trainer.global_step),
        max_steps=trainer.max_steps,
        epoch=int(trainer.current_epoch),
        max_epochs=trainer.max_epochs,
        asked_to_stop=bool(trainer.should_stop),
        in_mid_epoch=ended_mid_epoch(trainer),
        early_stopping=fit.stopped_early,
        failed=fit.failed,
    )


def _folder_of(trainer: Any, exp_dir: str | Path | None) -> Path:
    """The folder for states. Collective, as Lightning asks rank 0 for its `log_dir`."""
    if exp_dir is not None:
        return Path(exp_dir).absolute()
    return Path(trainer.log_dir or trainer.default_root_dir or ".").absolute() / _FOLDER
