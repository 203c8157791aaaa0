"""`FaultToleranceSectionsCallback`: a training's sections, limits learned from them, and what a failure asks for.

Sections: "setup" from the start to the first batch, "step" around each batch of training, validation and test, from the
hooks at its begin to those at its end, "checkpointing" around what the strategy does with checkpoints. What always
holds: limits are learned by all ranks or by none; a section is open only while what it names runs.
Does not cover: heartbeats; `FaultToleranceCallback` may be in the same trainer. Checkpoints that the program writes by
hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from holdfast.callbacks.arguments import SectionsArguments
from holdfast.callbacks.supervision import SectionTraining
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING

from .checkpoints import FINALIZE, are_asynchronous
from .fault_tolerance_callback import SupervisedCallback

__all__ = ["FaultToleranceSectionsCallback"]


class FaultToleranceSectionsCallback(SectionsArguments, SupervisedCallback):
    """Reports the trainer's sections setup, step and checkpointing to the launcher's monitor while it fits, and while
    it validates or tests by itself.

    The constructor describes the arguments. `setup` raises what it raises in `FaultToleranceCallback`, and ValueError
    unless `rank_section_timeouts` has limits for exactly these sections.
    """

    KIND = SectionTraining
    place: ClassVar[int] = -1
    """What other callbacks do after a batch may take its time, and is in no section."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The section "step" begins."""
        if self._fit is not None:
            self._fit.rules.iterations += 1
            self._fit.begin_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The section "step" ends. After a checkpoint, learn."""
        if self._fit is not None:
            self._fit.end_step()
            self._fit.learn_if_due()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where the model's own hook has ended the epoch at the begin of a batch, that batch has no end."""
        if self._fit is not None:
            self._fit.end_step()

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        """The section "step" begins."""
        if self._fit is not None:
            self._fit.begin_step()

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        """The section "step" ends."""
        if self._fit is not None:
            self._fit.end_step()

    on_test_batch_start, on_test_batch_end = on_validation_batch_start, on_validation_batch_end

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The fit continues from a checkpoint."""
        if self._fit is not None:
            self._fit.rules.loaded = True

    def _watch_saves(self, trainer: Any) -> None:
        fit, strategy = self._fit, trainer.strategy
        fit.rules.asynchronous = are_asynchronous(trainer)

        def checkpointing(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with fit.within(CHECKPOINTING):
                return original(*args, **kwargs)

        def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            done = checkpointing(original, args, kwargs)
            fit.rules.saved()
            return done

        self._patches.wrap(strategy, "save_checkpoint", save)
        self._patches.wrap(strategy, "remove_checkpoint", checkpointing)
        if hasattr(strategy.checkpoint_io, FINALIZE):
            self._patches.wrap(strategy.checkpoint_io, FINALIZE, checkpointing)
