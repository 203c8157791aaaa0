"""`FaultToleranceSectionsCallback`, and what it has in common with `FaultToleranceCallback`.

Sections: "setup" from the start to the first batch, "step" around each batch of training, validation and test,
"checkpointing" around what the strategy does with checkpoints.

What always holds: the errors of a wrong start of a fit are raised in `setup`, and from then on nothing raises because
supervision fails. Supervision ends in `teardown`, or, after an exception, with the strategy: what other callbacks save
then is still supervised. `validate` and `test` by themselves are supervised under `ft_launcher`; they learn nothing,
and a supervision that cannot begin ends nothing.

Does not cover: `predict`. An `on_exception` of another callback that raises: the next `setup` ends supervision then.
Early stopping by callbacks that are no subclass of Lightning's; a rank whose own metric gave no reason to stop, in the
first epoch. Checkpoints that the program writes by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.callbacks.arguments import FaultToleranceArguments, SectionsArguments, named, why_no_launcher
from holdfast.callbacks.completion import record_chosen, why_complete
from holdfast.callbacks.supervision import SectionTraining, SupervisedTraining
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING
from holdfast.patches import Patches

from .checkpoints import FINALIZE, are_asynchronous, keep_whole
from .framework import PlacedCallback, ended_mid_epoch, is_a, refuse_untested


class SupervisedCallback(FaultToleranceArguments, PlacedCallback):
    """Subclasses say what they do at Lightning's hooks."""

    KIND: ClassVar[type[SupervisedTraining]]

    _fit: Any = None
    """The training (a `KIND`), or evaluation, that is supervised now."""

    @property
    def is_initialized(self) -> bool:
        """Whether a fit, or an evaluation by itself, is supervised now."""
        return self._fit is not None and self._fit.client.is_initialized

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Of a fit: raises RuntimeError without `ft_launcher`, or without FAULT_TOL_FINISHED_FLAG_FILE where
        `autoresume` needs it, or where there are no limits at all, or with a Lightning that was not tested; ValueError
        if states cannot be kept; RankMonitorClientError if the program uses a client of its own."""
        if stage == "fit":
            self._end()  # of a fit that came to no end
            self._start(trainer, stage)
            if trainer.is_global_zero:
                record_chosen(str(trainer.ckpt_path or ""))
        elif stage in ("validate", "test") and self._fit is None and not why_no_launcher(""):
            try:
                self._start(trainer, stage)
            except Exception as error:
                what = "test" if stage == "test" else "validate"  # it is a member of an enumeration
                named(self.logger_name).warning("trainer.%s() is not supervised: %s", what, error)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """States are restored; the first batch comes. A stop that a checkpoint remembers is none of this fit, nor is
        the sanity check one of its validations."""
        if self._fit is not None:
            self._stops_before = _stops(trainer)
            self._fit.rules.evaluation_to_come = bool(trainer.enable_validation)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit is not None:
            self._fit.rules.evaluation_to_come = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A failure, or a clean stop like `sys.exit(0)`. Lightning calls the strategy's `teardown` next, and no
        `teardown` of ours."""
        if self._fit is not None:
            self._ends_after_strategy = True
            self._fit.fail(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end without an exception; or of the fit of a tuner, which Lightning leaves by an exception of its own."""
        if self._fit is not None and stage == self._stage:
            if sys.exc_info()[1] is self._handled_before:
                self._fit.finish(lambda: self._why_complete(trainer))
            self._end()

    def _start(self, trainer: Any, stage: str) -> None:
        refuse_untested()
        folder = Path(self.exp_dir or _default_folder(trainer) / self.FT_DIR_NAME).absolute()
        self._fit = self.KIND(
            self,
            int(trainer.global_rank),
            folder,
            lambda: int(trainer.global_step),
            evaluates=stage != "fit",
        )
        self._stage, self._ends_after_strategy = stage, False
        self._handled_before = sys.exc_info()[1]
        self._stops_before = _stops(trainer)
        self._patches = Patches()
        try:
            if stage == "fit":
                # First: a checkpoint counts as complete when it has its name.
                keep_whole(trainer, self._patches)
                self._watch_saves(trainer)
            self._patches.wrap(trainer.strategy, "teardown", self._after_strategy)
            self.take_place(trainer)
        except BaseException:
            self._end()
            raise

    def _watch_saves(self, trainer: Any) -> None:
        raise NotImplementedError

    def _why_complete(self, trainer: Any) -> str:
        stopped_early = any(
            self._stops_before.get(id(each)) != _stop_of(each) or _exhausted(each)
            for each in _early_stopping(trainer)
        )
        return why_complete(
            self._fit.rules.iterations,
            global_step=int(trainer.global_step),
            max_steps=trainer.max_steps,
            epoch=int(trainer.current_epoch),
            max_epochs=trainer.max_epochs,
            asked_to_stop=bool(trainer.should_stop),
            in_mid_epoch=ended_mid_epoch(trainer),
            early_stopping=stopped_early,
        )

    def _after_strategy(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            if self._ends_after_strategy:
                self._end()

    def _end(self) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            self._patches.undo()
            fit.end()


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
        if self._fit is not None:
            self._fit.rules.iterations += 1
            self._fit.begin_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.end_step()
            self._fit.learn_if_due()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where the model's own hook has ended the epoch at the begin of a batch, that batch has no end."""
        if self._fit is not None:
            self._fit.end_step()

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        if self._fit is not None:
            self._fit.begin_step()

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        if self._fit is not None:
            self._fit.end_step()

    on_test_batch_start, on_test_batch_end = on_validation_batch_start, on_validation_batch_end

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
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


def _early_stopping(trainer: Any) -> list[Any]:
    return [each for each in trainer.callbacks if is_a(each, "EarlyStopping")]


def _stops(trainer: Any) -> dict[int, Any]:
    """What each EarlyStopping callback remembers of a stop, by its identity: they may not be hashable."""
    return {id(each): _stop_of(each) for each in _early_stopping(trainer)}


def _stop_of(callback: Any) -> Any:
    return callback.stopped_epoch, getattr(callback, "stopping_reason", None)


def _exhausted(callback: Any) -> bool:
    """For Lightning before 2.6, which tells no reason, and for the first epoch an epoch like "never"."""
    return not hasattr(callback, "stopping_reason") and callback.wait_count >= callback.patience


def _default_folder(trainer: Any) -> Path:
    """Collective, as Lightning asks rank 0 for its `log_dir`."""
    return Path(trainer.log_dir or trainer.default_root_dir or ".")
