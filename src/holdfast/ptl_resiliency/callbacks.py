"""What our callbacks do at Lightning's hooks: heartbeats, straggler reports, preemption, and all three in one.

`StragglerDetectionCallback` measures the model's `training_step`, as the trainer's strategy calls it. Lightning's own
strategies call it through the wrapped model, and DistributedDataParallel first gives all ranks rank 0's buffers, where
ranks wait for the one that comes last. So there the section begins where the wrapper calls the model. What always
holds: all ranks stop in the same step or none does; outside of a step the model has no hook of ours, so that it can be
pickled and copied.

`PreemptionCallback`: at the next boundary on which all ranks agree (after a training batch; under ft_launcher, and with
one process, also in validations) the ranks save a checkpoint where `fit(ckpt_path="last")` finds it and exit with 0.
After the last batch of an epoch they do so once its last hooks have run: in a fit that resumes they would not.
What always holds: a save that fails does not end with code 0. In validate, test and predict, where there is nothing to
save, it only keeps Lightning's handler, which can deadlock, out of force.

What always holds of all: after the fit handlers, loaders and strategy are as they were; after a preemption the handlers
stay, since the process ends.

Does not cover: stragglers in validation, test and prediction; work of several GPUs that wait for one another within a
kernel; waiting within the method: weights that are gathered (FSDP), the backward of manual optimization; the trainer's
`callback_metrics`: other callbacks cannot monitor what is given to the loggers here. A rank that never comes to another
boundary (it hangs: `ft_launcher` ends it); places between boundaries, so the running step is waited for; ranks with
different numbers of validation loaders. Sections, and other arguments than the defaults, of the callback that has all
three.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from signal import SIGTERM
from typing import Any, ClassVar, NoReturn

from holdfast.callbacks.preemption import Preemption, PreemptionArguments
from holdfast.callbacks.signals import StayingWorkers
from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.stragglers import StragglerArguments, StragglerDetection, measure_from_forward
from holdfast.callbacks.supervision import HeartbeatTraining
from holdfast.fault_tolerance.stop.rules import LOADER_END, in_loader
from holdfast.patches import Patches
from holdfast.straggler.detector import Detector

from .checkpoints import keep_whole, keeper_of, save_last, when_complete
from .framework import (
    PlacedCallback,
    TrainerLoggers,
    at_the_end_of_each_loader,
    frameworks,
    is_last_of_epoch,
    keep_signals_from_lightning,
    leave_epoch_to_come,
    leave_validation_to_come,
    refuse_untested,
    seeding,
    steps_are_reached,
    validation_follows,
)
from .supervised import SupervisedCallback

__all__ = ["FaultToleranceCallback", "HoldfastCallback", "PreemptionCallback", "StragglerDetectionCallback"]


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer fits, and while it validates or tests by itself.

    The constructor describes the arguments. What `setup` raises is described there.
    """

    KIND = HeartbeatTraining

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        self._beat()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._fit is not None:
            self._fit.iterate()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._beat()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._beat()

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        self._beat()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_validation_end(trainer, pl_module)
        self._beat()

    on_test_start, on_test_batch_end, on_test_end = (
        on_validation_start,
        on_validation_batch_end,
        on_validation_end,
    )

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._fit is not None:
            self._fit.saving()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._fit is not None:
            self._fit.rules.loaded = True

    def _watch_saves(self, trainer: Any) -> None:
        fit = self._fit
        when_complete(trainer, self._patches, lambda seconds: fit.saved())

    def _beat(self) -> None:
        if self._fit is not None:
            self._fit.beat()


class StragglerDetectionCallback(StragglerArguments, PlacedCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training.

    The constructor describes the arguments.
    """

    place: ClassVar[int] = 20
    _run: StragglerDetection | None = None
    _validation_follows = False
    """Of a fit that stops for a straggler."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, if this is a fit. Raises RuntimeError if the detector is initialised already, and with a
        Lightning that was not tested."""
        if stage != "fit":
            return
        self._close()  # an earlier fit may have ended without the call that ends this
        refuse_untested()
        self._validation_follows = False
        self._patches = Patches()
        self._run = StragglerDetection(self._settings, int(trainer.global_rank), "trainer.fit()")
        self._patches.wrap(trainer.strategy, "training_step", _measuring(trainer.strategy))
        self._loggers = TrainerLoggers(self._run.log)
        self.take_place(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make a report if one is due. Ends the process by SystemExit if it was to stop."""
        run = self._run
        if run is not None and run.after_step(self._loggers.of_this_step(trainer)):
            self._stop(trainer, run.log)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """The last checkpoint has the validation still to come that follows."""
        if self._validation_follows:
            leave_validation_to_come(checkpoint, begun=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning tears nothing down after an exception."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._close()

    def _stop(self, trainer: Any, log: logging.Logger) -> NoReturn:
        """The documented end: a last checkpoint, exit code 1."""
        self._validation_follows = validation_follows(trainer)
        trainer.should_stop = True
        try:
            path = save_last(trainer)
        except Exception as error:
            log.error("Not saved before terminating: %s", error)
        else:
            if trainer.is_global_zero and path:
                log.info("Saved %s before terminating", path)
            elif trainer.is_global_zero:
                log.warning("No checkpoint was saved: the trainer has no ModelCheckpoint that keeps any")
        sys.exit(1)

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._patches.undo()
            run.close()


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


class PreemptionCallback(PreemptionArguments, PlacedCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted."""

    place: ClassVar[int] = 30
    _fit: PreemptibleFit | None = None
    _elsewhere: Patches | None = None
    """Of a stage in which nothing can be saved."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Listen, if this is a fit. Raises RuntimeError with a Lightning that was not tested."""
        self._close()
        refuse_untested()
        fit = None
        if stage == "fit":
            self._fit = fit = PreemptibleFit(trainer, self.sig)
            self.take_place(trainer)
            try:
                if fit.listen(fit.take_over):
                    return
            except BaseException:  # Lightning calls `on_exception`; another loop may not
                self._close()
                raise
            self._close()
        # Nothing can be saved: what the program has set is in force, by default the end.
        self._elsewhere = Patches()
        keep_signals_from_lightning(trainer, {int(SIGTERM)}, self._elsewhere)
        if fit is not None:
            fit.notices.raise_again()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit and self._fit.after_batch():
            self._fit.stop_after_batch()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit and self._fit.stops_between_epochs:
            self._fit.epoch_begins = True
            self._fit.save_and_exit()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.in_validation_at(self._fit.places.start())

    def on_validation_batch_end(self, trainer: Any, *_batch: Any) -> None:
        if self._fit:
            self._fit.in_validation_at(self._fit.places.after_batch())

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint for a preemption has the validation still to come that was begun, or follows, or the epoch."""
        if self._fit and self._fit.validation is not None:
            leave_validation_to_come(checkpoint, begun=self._fit.validation)
        if self._fit and self._fit.epoch_begins:
            leave_epoch_to_come(checkpoint)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit and self._fit.stops_between_epochs:
            self._fit.save_and_exit()
        if self._fit:
            self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A callback that comes later may save a checkpoint here, so what `on_save_checkpoint` needs stays."""
        if self._fit:
            self._fit.close()
        else:
            self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        fit, self._fit = self._fit, None
        if self._elsewhere is not None:
            self._elsewhere.undo()
        if fit is not None:
            fit.close()


class PreemptibleFit(Preemption):
    """One fit, from its setup until it ends. `close` puts back what `take_over` has changed, however far it came."""

    def __init__(self, trainer: Any, sig: int) -> None:
        super().__init__(sig, int(trainer.global_rank))
        self.places = ValidationPlaces()
        self.validation: bool | None = None
        """Of a fit that stops: whether a validation was begun (True) or follows; None: neither."""
        self.stops_between_epochs = False
        """All ranks stop when the epoch has ended, as the hooks of its end would never run in a fit that resumes."""
        self.epoch_begins = False
        """They stop where the next one begins."""
        self._trainer = trainer
        self._patches = Patches()
        self._workers = StayingWorkers(self.signals)
        self._last_save: float | None = None
        """Seconds that it took; None before."""

    def take_over(self) -> None:
        """The signals from Lightning, its checkpoints and its data loaders."""
        trainer = self._trainer
        keep_signals_from_lightning(trainer, self.signals, self._patches, self.notices.install)
        keep_whole(trainer, self._patches)
        when_complete(trainer, self._patches, self._saved)
        self._patches.wrap(trainer.strategy, "process_dataloader", self._process_loaders)
        at_the_end_of_each_loader(
            trainer, self._patches, lambda: self.in_validation_at(self.places.after_loader())
        )
        if trainer.is_global_zero:
            self._warn_of_what_is_not_found(keeper_of(trainer))

    def in_validation_at(self, place: int) -> None:
        """At this place of a validation. Raises what `save_and_exit` does, if all ranks stop here."""
        if not self.stops_between_epochs and self.in_validation(place):
            if steps_are_reached(self._trainer):
                self.stops_between_epochs = True
            else:
                self.save_and_exit(validation=True)

    def stop_after_batch(self) -> None:
        """On all ranks, after the same batch. Raises what `save_and_exit` does, but where the epoch ends first."""
        trainer = self._trainer
        follows = validation_follows(trainer)
        if is_last_of_epoch(trainer) and (steps_are_reached(trainer) or not follows):
            self.stops_between_epochs = True
        else:
            self.save_and_exit(validation=False if follows else None)

    def save_and_exit(self, *, validation: bool | None = None) -> NoReturn:
        """On all ranks, at the same place. Raises SystemExit(0), or what the save raised."""
        trainer = self._trainer
        self.stop(self._last_save)
        self.validation = validation
        trainer.should_stop = True
        try:
            path = save_last(trainer)
        except Exception as error:
            self.failed(trainer.global_step, error)
            raise
        if path is None:
            self.nothing_saved(
                trainer.global_step, "the trainer has no ModelCheckpoint, or is a fast_dev_run"
            )
        self.complete(trainer.global_step, path)

    def close(self) -> None:
        """Everything back as it was. May be called twice."""
        self._patches.undo()
        self._workers.undo()
        super().close()

    def _warn_of_what_is_not_found(self, keeper: Any) -> None:
        """Before Lightning has set the keeper up, which gives it a folder."""
        if keeper is None:
            self.log.warning(
                "PreemptionCallback: this trainer has no ModelCheckpoint, which says where checkpoints are kept: when "
                "preempted it will exit without saving one"
            )
            return
        if "://" in str(keeper.dirpath):
            self.log.warning(
                'PreemptionCallback: fit(ckpt_path="last") finds no checkpoint in %s, since Lightning looks for it on '
                "the local disk only, and the training would begin anew: give fit the path of the newest one",
                keeper.dirpath,
            )
            return
        has_new_folders = keeper.dirpath is None and self._trainer.loggers
        missing = ["dirpath"] * bool(has_new_folders) + ["save_last"] * (not keeper.save_last)
        if missing:
            self.log.warning(
                'PreemptionCallback: fit(ckpt_path="last") may not find the newest checkpoint: the ModelCheckpoint has '
                "no %s. Without dirpath most loggers choose a new folder in each start; without save_last only "
                'preemptions write last.ckpt. Use ModelCheckpoint(dirpath="checkpoints", save_last=True)',
                " and no ".join(missing),
            )

    def _saved(self, seconds: float) -> None:
        self._last_save = seconds

    def _process_loaders(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Of each loader that the trainer takes into use the workers stay."""
        for loader in (*args, *kwargs.values()):
            self._workers.of(loader, seeding(self._trainer.global_rank))
        return original(*args, **kwargs)


class ValidationPlaces:
    """The places of one validation: each is the batch that comes next, or the end of a loader. They rise.

    Ranks may have different numbers of batches; the place at the end of a loader, before its results are reduced over
    the ranks, is the same on all.
    """

    def __init__(self) -> None:
        self._loader, self._next = 0, 1

    def start(self) -> int:
        """Before the first batch."""
        self._loader, self._next = 0, 1
        return in_loader(0, 1)

    def after_batch(self) -> int:
        """After each batch."""
        self._next = min(self._next + 1, LOADER_END - 1)
        return in_loader(self._loader, self._next)

    def after_loader(self) -> int:
        """When all batches of one loader are done."""
        place = in_loader(self._loader, LOADER_END)
        self._loader, self._next = self._loader + 1, 1
        return place


class HoldfastCallback(PlacedCallback):
    """`Trainer(callbacks=[HoldfastCallback()])`: hangs are found, preemptions saved, slow ranks named.

    The finished flag is made where FAULT_TOL_FINISHED_FLAG_FILE names it; timeouts are learned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Any] = [
            FaultToleranceCallback(),
            PreemptionCallback(),
            StragglerDetectionCallback(),
        ]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raises RuntimeError if the trainer has one of the three already, and what their `setup` raises."""
        if all(part in trainer.callbacks for part in self._parts):  # a later fit: Lightning calls them
            return
        for part in self._parts:
            if any(isinstance(each, type(part)) for each in trainer.callbacks):
                raise RuntimeError(
                    f"HoldfastCallback has a {type(part).__name__}, and the trainer has another: leave one out"
                )
        # A new list: Lightning walks the old one now, so it does not call these.
        trainer.callbacks = [*trainer.callbacks, *self._parts]
        for part in self._parts:
            part.setup(trainer, pl_module, stage)
