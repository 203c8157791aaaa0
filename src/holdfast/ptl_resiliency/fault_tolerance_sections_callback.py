"""`FaultToleranceSectionsCallback`: a training's sections, limits learned from them, and what a failure asks for.

Sections: "setup" from the start to the first batch, "step" around each batch of training and validation, from the
hooks at its begin to those at its end, "checkpointing" around what the strategy does with checkpoints. What always
holds: limits are learned by all ranks or by none; a section is open only while what it names runs.
Does not cover: heartbeats; `FaultToleranceCallback` may be in the same trainer. Checkpoints that the program writes by
hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks import arguments, exception_policy
from holdfast.callbacks.arguments import described
from holdfast.callbacks.learning_limits import SectionLearning
from holdfast.callbacks.sections import Sections
from holdfast.callbacks.supervised_training import verify_sections
from holdfast.fault_tolerance import WorkloadControlRequest
from holdfast.fault_tolerance.timeouts import learned_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, SETUP, STEP, SectionRules

from .checkpoints import FINALIZE, are_asynchronous
from .supervised_callback import SupervisedCallback, SupervisedFit

__all__ = ["FaultToleranceSectionsCallback"]


class FaultToleranceSectionsCallback(SupervisedCallback):
    """Reports the trainer's sections setup, step and checkpointing to the launcher's monitor while it fits.

    The constructor describes the arguments. `setup` raises what it raises in `FaultToleranceCallback`, and ValueError
    unless `rank_section_timeouts` has limits for exactly these sections.
    """

    TIMEOUTS_FILENAME: ClassVar[str] = "_ft_state_.json"
    PART: ClassVar[str] = learned_timeouts.SECTION
    place: ClassVar[int] = -1
    """What other callbacks do after a batch may take its time, and is in no section."""
    _sections: Sections | None = None
    _learning: SectionLearning | None = None

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
        self._rules = SectionRules()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The section "step" begins."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._open_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The section "step" ends. After a checkpoint, learn."""
        self._close_step()
        if self._rules.due and self._fit is not None:
            self._learn(self._fit, final=False)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where the model's own hook has ended the epoch at the begin of a batch, that batch has no end."""
        self._close_step()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The section "step" begins."""
        self._open_step()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The section "step" ends."""
        self._close_step()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The fit continues from a checkpoint."""
        self._rules.loaded = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """What was open is closed; then as in `SupervisedCallback`."""
        if self._sections is not None:
            self._sections.close_all()
        super().on_exception(trainer, pl_module, exception)

    def _begin(self, fit: SupervisedFit) -> None:
        verify_sections(fit.client)
        self._rules = SectionRules(asynchronous=are_asynchronous(fit.trainer))
        self._learning = SectionLearning(fit, self._rules)
        fit.supervision.has_sections = True
        self._sections = sections = Sections(fit.client, fit.log)
        sections.open(SETUP)
        strategy = fit.trainer.strategy

        def checkpointing(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with sections.within(CHECKPOINTING):
                return original(*args, **kwargs)

        def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            done = checkpointing(original, args, kwargs)
            self._rules.saved()
            return done

        fit.patches.wrap(strategy, "save_checkpoint", save)
        fit.patches.wrap(strategy, "remove_checkpoint", checkpointing)
        if hasattr(strategy.checkpoint_io, FINALIZE):
            fit.patches.wrap(strategy.checkpoint_io, FINALIZE, checkpointing)

    def _conclude(self, fit: SupervisedFit, *, stopped: bool) -> None:
        if self._sections is not None:
            self._sections.close(SETUP)
        self._learn(fit, final=True, stopped=stopped)

    def _failed(self, fit: SupervisedFit, exception: BaseException) -> None:
        self._rules.failed = True
        self._rules.iterations = fit.batches
        if self.calculate_timeouts and self._learning is not None:
            self._learning.note(self._rules.selection(final=True))
        exception_policy.follow(self.exc_handling_policy, exception, fit)

    def _learn(self, fit: SupervisedFit, *, final: bool, stopped: bool = False) -> None:
        self._rules.iterations, self._rules.due = fit.batches, False
        if self.calculate_timeouts and self._learning is not None:
            self._learning.learn(final=final, stopped=stopped)

    def _open_step(self) -> None:
        if self._sections is not None:
            self._sections.close(SETUP)
            self._sections.open(STEP)

    def _close_step(self) -> None:
        if self._sections is not None:
            self._sections.close(STEP)

    def _has_limits(self, fit: SupervisedFit) -> bool:
        limits = fit.client.section_timeouts
        return limits is not None and any(limit is not None for limit in limits.section.values())

    def _limits(self, fit: SupervisedFit) -> Any:
        return fit.client.section_timeouts

    def _end(self) -> None:
        super()._end()
        self._sections = self._learning = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_sections": None, "_learning": None}
