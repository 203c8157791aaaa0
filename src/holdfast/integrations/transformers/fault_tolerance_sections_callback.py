"""`FaultToleranceSectionsCallback`: a training's sections, limits learned from them, and what a failure asks for.

Sections: "setup" from the begin of `train` to the first batch, "step" around each optimizer step with its batches, and
around each batch of an evaluation, "checkpointing" around each save. What always holds: limits are learned by all ranks
or by none; a section is open only while what it names runs. Does not cover: heartbeats; `FaultToleranceCallback` may be
in the same trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import arguments, exception_policy
from holdfast.callbacks.arguments import described
from holdfast.callbacks.learning_limits import SectionLearning
from holdfast.callbacks.sections import Sections
from holdfast.callbacks.supervised_training import SupervisedTraining, verify_sections
from holdfast.fault_tolerance import WorkloadControlRequest
from holdfast.fault_tolerance.timeouts.learned_timeouts import SECTION
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, SETUP, STEP, SectionRules

from .supervised_callback import SupervisedCallback
from .train_call import TrainCall

__all__ = ["FaultToleranceSectionsCallback"]


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
        autoresume: bool,
        calculate_timeouts: bool,
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
