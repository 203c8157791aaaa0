"""What the two fault-tolerance callbacks have in common: a training's begin and end.

What always holds: only `train` is supervised; `evaluate` and `predict` by themselves need no launcher. The errors of a
wrong start are raised at the begin of `train`; from then on nothing raises because supervision fails. Limits are
learned and the flag is created when `train` has come to its end, before supervision ends.

Does not cover: what the program does after `train`, a last `save_model` for example: the flag is there by then.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import callback_log
from holdfast.callbacks.arguments import DocumentedArguments
from holdfast.callbacks.completion import Ending, why_complete
from holdfast.callbacks.supervised_training import SupervisedTraining, verify_environment
from holdfast.fault_tolerance.timeouts.learning_conditions import is_clean_stop
from holdfast.prefixed_log import Prefixed

from .early_stopping import has_stopped_early
from .surrounding import SurroundingCallback
from .train_call import TrainCall


class SupervisedCallback(DocumentedArguments, SurroundingCallback):
    """Subclasses say what they do at the begin and the end of a training, and when limits are learned."""

    TIMEOUTS_FILENAME: ClassVar[str]
    FT_DIR_NAME: ClassVar[str] = "ft_state"
    PART: ClassVar[str]
    """Which part of the limits is this callback's."""

    _run: SupervisedTraining | None = None

    @property
    def is_initialized(self) -> bool:
        """Whether a training is supervised now."""
        return self._run is not None and self._run.client.is_initialized

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError without `ft_launcher`, or without FAULT_TOL_FINISHED_FLAG_FILE where `autoresume` needs
        it, or where there are no limits at all; ValueError if states cannot be kept; RankMonitorClientError if the
        program uses a client of its own."""
        verify_environment(type(self).__name__, autoresume=self.autoresume)
        log = Prefixed(callback_log.named(self.logger_name), training.rank)
        self._run = run = SupervisedTraining(self, training.rank, log)
        folder = Path(self.exp_dir or Path(training.trainer.args.output_dir) / self.FT_DIR_NAME).absolute()
        run.load_limits(
            folder / self.TIMEOUTS_FILENAME,
            self.PART,
            calculate=self.calculate_timeouts,
            limits=lambda: self._limits(run),
            has_limits=lambda: self._has_limits(run),
        )
        self._begin(run, training)
        run.simulate(self.simulated_fault_params)

    def finished(self, training: TrainCall) -> None:
        run = self._run
        if run is None:
            return
        try:
            self._conclude(run, stopped=False)
            if self.autoresume and (why := why_complete(self._ending(run, training))):
                run.log.info("Training is complete (%s), so creating finished flag file.", why)
                if run.rank == 0:
                    run.create_flag()
        except Exception as error:
            run.log.warning("the end of supervision failed: %r", error)

    def failed(self, training: TrainCall, error: BaseException) -> None:
        run = self._run
        if run is None:
            return
        run.failed = not is_clean_stop(error)
        try:
            if run.failed:
                self._failed(run, error)
            else:
                self._conclude(run, stopped=True)
        except Exception as problem:
            run.log.warning("the end of supervision failed: %r", problem)

    def end(self, training: TrainCall) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end()

    @abstractmethod
    def _begin(self, run: SupervisedTraining, training: TrainCall) -> None:
        """What this callback needs for a training. May raise what `begin` may."""

    @abstractmethod
    def _conclude(self, run: SupervisedTraining, *, stopped: bool) -> None:
        """Learn what can be learned at a clean end; `stopped` by an exception."""

    @abstractmethod
    def _failed(self, run: SupervisedTraining, error: BaseException) -> None:
        """A failure has ended the training on this rank."""

    @abstractmethod
    def _has_limits(self, run: SupervisedTraining) -> bool:
        """Whether there is a limit at all."""

    @abstractmethod
    def _limits(self, run: SupervisedTraining) -> Any:
        """The limits in force, for people."""

    def _ending(self, run: SupervisedTraining, training: TrainCall) -> Ending:
        trainer = training.trainer
        return Ending(
            iterations=None,  # Trainer always knows max_steps
            global_step=training.step,
            max_steps=int(trainer.state.max_steps),  # of all epochs
            asked_to_stop=True,
            early_stopping=has_stopped_early(trainer),
            failed=run.failed,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_run": None}
