"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after a training batch; under ft_launcher, and with one process, also in validations) the ranks save a checkpoint where
`fit(ckpt_path="last")` finds it and exit with code 0. One that is saved in a validation, or before one that is due, has
the validation still to come. What always holds: a save that fails does not end with code 0; after the training, normal
or not, handlers, loaders and strategy are as they were. In validate, test and predict, where there is nothing to save,
it only keeps Lightning's handler, which can deadlock, out of force. A signal before all ranks have come to this
callback's `setup` does what it would do without the callback.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it); places between
boundaries, so the running step is waited for; ranks with different numbers of validation loaders.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from signal import SIGTERM
from typing import Any, ClassVar, NoReturn

from holdfast.callbacks.loader_workers import InitFn, StayingWorkers
from holdfast.callbacks.preemption import Preemption, PreemptionArguments
from holdfast.fault_tolerance.stop.rules import LOADER_END, in_loader
from holdfast.patches import Patches

from .checkpoints import SaveTimes, keep_whole, save_last
from .framework import (
    PlacedCallback,
    at_the_end_of_each_loader,
    is_a,
    keep_signals_from_lightning,
    leave_validation_to_come,
    refuse_untested,
    validation_follows,
)


class PreemptionCallback(PreemptionArguments, PlacedCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted."""

    place: ClassVar[int] = 30
    _fit: PreemptibleFit | None = None
    _elsewhere: Patches | None = None
    """Of a stage in which nothing can be saved."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fit": None, "_elsewhere": None}

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
            self._fit.save_and_exit()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Of the training, or of the sanity check."""
        if self._fit:
            self._fit.in_validation_at(self._fit.places.start())

    def on_validation_batch_end(self, trainer: Any, *_batch: Any) -> None:
        if self._fit:
            self._fit.in_validation_at(self._fit.places.after_batch())

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint for a preemption has the validation still to come that was begun, or follows."""
        if self._fit and self._fit.validation is not None:
            leave_validation_to_come(checkpoint, begun=self._fit.validation)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
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
        """While the last checkpoint is saved: whether a validation was begun (True) or follows; None: neither."""
        self._trainer = trainer
        self._patches = Patches()
        self._workers = StayingWorkers(self.signals)
        self._save_times: SaveTimes | None = None

    def take_over(self) -> None:
        """The signals from Lightning, its checkpoints and its data loaders."""
        trainer = self._trainer
        keep_signals_from_lightning(trainer, self.signals, self._patches, self.notices.install)
        keep_whole(trainer, self._patches)
        self._save_times = SaveTimes(trainer, self._patches)
        self._patches.wrap(trainer.strategy, "process_dataloader", self._process_loaders)
        at_the_end_of_each_loader(
            trainer, self._patches, lambda: self.in_validation_at(self.places.after_loader())
        )
        if trainer.is_global_zero and not any(is_a(each, "ModelCheckpoint") for each in trainer.callbacks):
            self.log.warning(
                "PreemptionCallback: this trainer has no ModelCheckpoint, which says where checkpoints are kept: when "
                "preempted it will exit without saving one"
            )

    def in_validation_at(self, place: int) -> None:
        """At this place of a validation. Raises what `save_and_exit` does, if all ranks stop here."""
        if self.in_validation(place):
            self.save_and_exit(in_validation=True)

    def save_and_exit(self, *, in_validation: bool = False) -> NoReturn:
        """On all ranks, at the same place. Raises SystemExit(0), or what the save raised."""
        trainer = self._trainer
        self.stop(self._save_times.last if self._save_times else None)
        self.validation = in_validation or (False if validation_follows(trainer) else None)
        trainer.should_stop = True
        try:
            path = save_last(trainer)
        except Exception as error:
            self.failed(trainer.global_step, error)
            raise
        finally:
            self.validation = None
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


def seeding(rank: int) -> InitFn | None:
    """What Lightning would give a loader without a `worker_init_fn` (`seed_everything(workers=True)`)."""
    if not int(os.environ.get("PL_SEED_WORKERS") or 0):
        return None
    fabric = "lightning.fabric" if "lightning.fabric" in sys.modules else "lightning_fabric"
    return functools.partial(import_module(f"{fabric}.utilities.seed").pl_worker_init_function, rank=rank)
