"""`FaultToleranceSectionsCallback`: a training's sections, limits learned from them, and what a failure asks for.

Sections: "setup" from the start to the first batch, "step" around each step of training and validation,
"checkpointing" around what is done with checkpoints. What always holds: limits are learned by all ranks or by none; a
section is open only while what it names runs. Does not cover: heartbeats; `FaultToleranceCallback` may be in the same
trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import arguments, exception_policy
from holdfast.callbacks.documented_arguments import described
from holdfast.callbacks.learning_limits import SectionLearning
from holdfast.callbacks.supervised_training import verify_sections
from holdfast.fault_tolerance import WorkloadControlRequest
from holdfast.fault_tolerance.timeouts import learned_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import SETUP, SectionRules

from .saved_checkpoints import are_asynchronous
from .strategy_sections import StrategySections
from .supervised_callback import SupervisedCallback
from .supervised_fit import SupervisedFit

__all__ = ["FaultToleranceSectionsCallback"]


class FaultToleranceSectionsCallback(SupervisedCallback):
    """Reports the trainer's sections setup, step and checkpointing to the launcher's monitor while it fits.

    The constructor describes the arguments. `setup` raises what it raises in `FaultToleranceCallback`, and ValueError
    unless `rank_section_timeouts` has limits for exactly these sections.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state_.json"
    PART: ClassVar[str] = learned_timeouts.SECTION
    order: ClassVar[int] = 1

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
        self._rules = SectionRules()
        self._in_setup = False
        self._learning: SectionLearning | None = None

    def after_batch(self, trainer: Any, pl_module: Any) -> None:
        """After a checkpoint, learn."""
        if self._rules.due and self._fit is not None:
            self._learn(self._fit, final=False)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """States are restored; the first batch comes."""
        if self._fit is not None:
            self._fit.early_stops.restored()
            self._fit.each.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The end of the setup, at the first batch."""
        self._end_setup()
        if type(self).on_train_batch_start is FaultToleranceSectionsCallback.on_train_batch_start:
            # A hook costs about 2 µs in every step, and this one is done. `dismiss` brings it back.
            self.on_train_batch_start = None  # type: ignore[assignment]

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The end of the setup, where a validation comes before the first batch."""
        self._end_setup()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The fit continues from a checkpoint."""
        self._rules.loaded = True

    def _begin(self, fit: SupervisedFit) -> None:
        verify_sections(fit.client)
        self._rules = SectionRules(asynchronous=are_asynchronous(fit.trainer))
        self._learning = SectionLearning(fit, self._rules)
        fit.supervision.has_sections = True
        self._sections = StrategySections(fit.client, fit.log)
        self._in_setup = self._sections.open(SETUP)
        strategy = fit.trainer.strategy
        self._sections.wrap_steps(strategy, fit.each, fit.writer, fit.patches)
        self._sections.wrap_checkpoints(strategy, fit.patches, self._saved)

    def _conclude(self, fit: SupervisedFit, *, stopped: bool) -> None:
        self._end_setup()
        self._learn(fit, final=True, stopped=stopped)

    def _failed(self, fit: SupervisedFit, exception: BaseException) -> None:
        self._end_setup()
        self._rules.failed = True
        self._rules.iterations = fit.each.batches
        if self.calculate_timeouts and self._learning is not None:
            self._learning.note(self._rules.selection(final=True))
        exception_policy.follow(self.exc_handling_policy, exception, fit)

    def _learn(self, fit: SupervisedFit, *, final: bool, stopped: bool = False) -> None:
        self._rules.iterations, self._rules.due = fit.each.batches, False
        if self.calculate_timeouts and self._learning is not None:
            self._learning.learn(final=final, stopped=stopped)

    def _saved(self) -> None:
        self._rules.saved()
        self.arm()

    def _end(self, trainer: Any) -> None:
        super()._end(trainer)
        self._learning = None

    def _has_limits(self, fit: SupervisedFit) -> bool:
        limits = fit.client.section_timeouts
        return limits is not None and any(limit is not None for limit in limits.section.values())

    def _limits(self, fit: SupervisedFit) -> Any:
        return fit.client.section_timeouts

    def _end_setup(self) -> None:
        if self._in_setup:
            self._in_setup = False
            self._sections.close(SETUP)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        kept = {name: value for name, value in super().__getstate__().items() if name != "_sections"}
        return {**kept, "_learning": None}
