"""`FaultToleranceCallback` and `FaultToleranceSectionsCallback`: supervision of a training; the flag for auto-resume.

Heartbeats are sent in `train` only, after every optimizer step with the step. Sections: "setup" from the begin of
`train` to the first batch, "step" around each optimizer step with its batches, and around each batch of an evaluation,
"checkpointing" around each save. Both may be in the same trainer.

What always holds: only `train` is supervised; `evaluate` and `predict` by themselves need no launcher. The errors of a
wrong start are raised at the begin of `train`; from then on nothing raises because supervision fails. Limits are
learned by all ranks or by none, and the flag is created when `train` has come to its end, before supervision ends.

Does not cover: what the program does after `train`, a last `save_model` for example: the flag is there by then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.callbacks import arguments, callback_log, exception_policy
from holdfast.callbacks.arguments import DocumentedArguments, described
from holdfast.callbacks.completion import Ending, why_complete
from holdfast.callbacks.learning_limits import SectionLearning, learn_heartbeats
from holdfast.callbacks.sections import Sections
from holdfast.callbacks.supervised_training import SupervisedTraining, verify_environment, verify_sections
from holdfast.fault_tolerance import WorkloadControlRequest
from holdfast.fault_tolerance.timeouts.learned_timeouts import HEARTBEAT, SECTION
from holdfast.fault_tolerance.timeouts.learning_conditions import (
    CHECKPOINTING,
    SETUP,
    STEP,
    HeartbeatRules,
    SectionRules,
    is_clean_stop,
)
from holdfast.prefixed_log import Prefixed
from holdfast.testing.simulated import SimulatedFaultParams

from .training import SurroundingCallback, TrainCall

if TYPE_CHECKING:
    EarlyStoppingCallback: Any = None
else:
    from transformers import EarlyStoppingCallback

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams"]


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
        log = Prefixed(callback_log.named(self.logger_name), training.rank)
        verify_environment(
            type(self).__name__, autoresume=self.autoresume is True, rank=training.rank, log=log
        )
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
            if self.makes_flag and (why := why_complete(self._ending(run, training))):
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
            early_stopping=_has_stopped_early(trainer),
            failed=run.failed,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_run": None}


def _has_stopped_early(trainer: Any) -> bool:
    """Whether an `EarlyStoppingCallback` of transformers, or of a subclass, has lost its patience."""
    return any(
        isinstance(each, EarlyStoppingCallback)
        and each.early_stopping_patience_counter >= each.early_stopping_patience
        for each in trainer.callback_handler.callbacks
    )


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer trains.

    The constructor describes the arguments. What the begin of `train` raises is described at `begin`.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state.json"
    PART: ClassVar[str] = HEARTBEAT
    _rules = HeartbeatRules()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        super().on_train_begin(args, state, control)
        self._beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat with the step."""
        if self._run is not None:
            self._rules.iterations += 1
            self._run.beat(state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat, where gradients are accumulated."""
        self._beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def _begin(self, run: SupervisedTraining, training: TrainCall) -> None:
        self._rules = rules = HeartbeatRules()

        def before() -> None:
            self._beat()
            rules.saved()

        def after() -> None:
            run.saved(training.step)
            self._beat()

        training.checkpoints.before.append(before)
        training.checkpoints.after.append(after)
        training.on_resume.append(lambda: setattr(rules, "loaded", True))

    def _beat(self) -> None:
        if self._run is not None:
            self._rules.other_beats += 1
            self._run.beat()

    def _conclude(self, run: SupervisedTraining, *, stopped: bool) -> None:
        self._beat()
        if self.calculate_timeouts:
            learn_heartbeats(run, self._rules, stopped=stopped)

    def _failed(self, run: SupervisedTraining, error: BaseException) -> None:
        self._beat()
        self._rules.failed = True
        run.side.close()  # the others, should they ask this rank, then need not wait for it

    def _has_limits(self, run: SupervisedTraining) -> bool:
        limits = run.client.hb_timeouts
        return limits is not None and limits.are_valid

    def _limits(self, run: SupervisedTraining) -> Any:
        return run.client.hb_timeouts


class FaultToleranceSectionsCallback(SupervisedCallback):
    """Reports the trainer's sections setup, step and checkpointing to the launcher's monitor while it trains.

    The constructor describes the arguments. The begin of `train` raises what it raises in `FaultToleranceCallback`,
    and ValueError unless `rank_section_timeouts` has limits for exactly these sections.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state_.json"
    PART: ClassVar[str] = SECTION

    @described
    def __init__(
        self,
        autoresume: bool | None = None,
        calculate_timeouts: bool = True,
        simulated_fault_params: Any | None = None,
        exp_dir: str | Path | None = None,
        logger_name: str | None = "nemo_logger.FaultToleranceCallback",
        exc_handling_policy: Callable[[Any], WorkloadControlRequest | None] | None = None,
    ) -> None:
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        self.exc_handling_policy = arguments.policy(exc_handling_policy)
        self._learning: SectionLearning | None = None
        self._sections: Sections | None = None

    def begin(self, training: TrainCall) -> None:
        """As in `FaultToleranceCallback`; ValueError also unless there are limits for exactly the three sections."""
        super().begin(training)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, and with the first one the setup is over."""
        if self._sections is not None:
            self._sections.close(SETUP)
            self._sections.open(STEP)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is over; after a checkpoint, learn."""
        learning = self._learning
        if self._sections is None or learning is None:
            return
        self._sections.close(STEP)
        learning.rules.iterations += 1
        if learning.rules.due and self.calculate_timeouts:
            learning.learn(final=False)

    def _begin(self, run: SupervisedTraining, training: TrainCall) -> None:
        verify_sections(run.client)
        rules = SectionRules()
        self._learning = SectionLearning(run, rules)
        run.supervision.has_sections = True
        self._sections = sections = Sections(run.client, run.log)
        sections.open(SETUP)

        def predict(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            sections.close(SETUP)
            with sections.within(STEP):
                return original(*args, **kwargs)

        training.patches.wrap(training.trainer, "prediction_step", predict)
        training.checkpoints.around = lambda: sections.within(CHECKPOINTING)
        training.checkpoints.after.append(rules.saved)
        training.on_resume.append(lambda: setattr(rules, "loaded", True))

    def _conclude(self, run: SupervisedTraining, *, stopped: bool) -> None:
        if self._sections is not None and self._learning is not None:
            self._sections.close_all()
            if self.calculate_timeouts:
                self._learning.learn(final=True, stopped=stopped)

    def _failed(self, run: SupervisedTraining, error: BaseException) -> None:
        if self._sections is not None and self._learning is not None:
            self._sections.close_all()
            self._learning.rules.failed = True
            if self.calculate_timeouts:
                self._learning.note(self._learning.rules.selection(final=True))
        exception_policy.follow(self.exc_handling_policy, error, run)
        run.side.close()  # the others, should they ask this rank, then need not wait for it

    def end(self, training: TrainCall) -> None:
        super().end(training)
        self._learning = self._sections = None

    def _has_limits(self, run: SupervisedTraining) -> bool:
        limits = run.client.section_timeouts
        return limits is not None and any(limit is not None for limit in limits.section.values())

    def _limits(self, run: SupervisedTraining) -> Any:
        return run.client.section_timeouts

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_learning": None, "_sections": None}
