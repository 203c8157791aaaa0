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
import time
from collections.abc import Callable
from importlib import import_module
from signal import SIGTERM
from typing import Any, ClassVar

from holdfast.callbacks import callback_log
from holdfast.fault_tolerance.stop.rules import LOADER_END, in_loader
from holdfast.patches import Patches
from holdfast.preemption import log_texts
from holdfast.preemption.loader_workers import InitFn, StayingWorkers
from holdfast.preemption.notices import Notices, parse_signal
from holdfast.preemption.stopping_place import Alone, Way, find_way
from holdfast.preemption.time_left import shortage, time_left
from holdfast.side_group import CollectiveFailed

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

LOGGER = "nemo_logger.PreemptionCallback"


class PreemptionCallback(PlacedCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted.

    Args:
        sig: the signal that says so: a number, a `signal.Signals` or a name. SIGTERM always does as well.

    Raises:
        ValueError: `sig` is no signal, or none that a program can listen for.
    """

    place: ClassVar[int] = 30

    def __init__(self, sig: Any = SIGTERM) -> None:
        self.sig = parse_signal(sig)
        self._fit: PreemptibleFit | None = None
        self._elsewhere = Patches()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fit": None, "_elsewhere": Patches()}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Listen, if this is a fit. Raises RuntimeError with a Lightning that was not tested."""
        self._close()
        refuse_untested()
        if stage != "fit":  # nothing to save: what the program has set is in force, by default the end
            keep_signals_from_lightning(trainer, {int(SIGTERM)}, self._elsewhere)
            return
        self._fit = fit = PreemptibleFit(trainer, {self.sig, int(SIGTERM)})
        self.take_place(trainer)
        try:
            listens = fit.listen()
        except BaseException:  # Lightning calls `on_exception`; another loop may not
            self._close()
            raise
        if not listens:
            self._close()
            keep_signals_from_lightning(trainer, {int(SIGTERM)}, self._elsewhere)
            fit.notices.raise_again()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()
            if self._fit.way.begin():
                self._fit.stop()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit:
            self._fit.after_batch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.validation_starts()

    def on_validation_batch_end(self, trainer: Any, *_batch: Any) -> None:
        if self._fit:
            self._fit.after_validation_batch()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self._fit:
            self._fit.complete(checkpoint)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        fit, self._fit = self._fit, None
        self._elsewhere.undo()
        if fit is not None:
            fit.close()


class PreemptibleFit:
    """One fit that is watched over, from its setup until it ends; `signals` are the numbers of those that are notices.

    What always holds: nothing is changed before all ranks have come to `listen`, so until then a signal does what it
    would without the callback; `close` puts back what `listen` has changed, however far it came.
    """

    def __init__(self, trainer: Any, signals: set[int]) -> None:
        self.log = callback_log.named(LOGGER)
        self.notices = Notices(signals)
        self.way: Way = Alone(self.notices)
        self.batches = 0
        """Training batches of this fit that are done."""
        self._trainer = trainer
        self._signals = signals
        self._patches = Patches()
        self._loaders = Loaders(signals)
        self._save_times: SaveTimes | None = None
        self._places = ValidationPlaces()
        self._said_received = self._preempted = False
        self._validation: bool | None = None
        """While the last checkpoint is saved: whether a validation was begun (True) or follows; None: neither."""

    def listen(self) -> bool:
        """From now on, on all ranks, a signal is a notice. Collective, and all may stop here (see `stop`).

        False: the ranks cannot ask each other (one ended meanwhile), and nothing here is of use.
        """
        try:
            self.way = find_way(self.notices)
            self._take_over()
            stop = self.way.listening()
        except CollectiveFailed as error:
            self.log.warning(log_texts.ASKED_NOBODY, error)
            return False
        if stop:
            self.stop()
        return True

    def _take_over(self) -> None:
        trainer = self._trainer
        if not self.notices.install():
            self.log.warning(log_texts.DEAF)
        keep_signals_from_lightning(trainer, self._signals, self._patches, self.notices.install)
        keep_whole(trainer, self._patches)
        self._save_times = SaveTimes(trainer, self._patches)
        self._loaders.watch(trainer, self._patches)
        at_the_end_of_each_loader(
            trainer, self._patches, lambda: self._in_validation(self._places.after_loader())
        )
        if trainer.is_global_zero and not any(is_a(each, "ModelCheckpoint") for each in trainer.callbacks):
            self.log.warning(
                "PreemptionCallback: this trainer has no ModelCheckpoint, which says where checkpoints are kept: when "
                "preempted it will exit without saving one"
            )

    def after_batch(self) -> None:
        """After a training batch."""
        self.batches += 1
        if self.way.after_batch(self.batches):
            self.stop()
        self._say_received()

    def validation_starts(self) -> None:
        """Before the first batch of a validation of the training, or of the sanity check."""
        self._in_validation(self._places.start())

    def after_validation_batch(self) -> None:
        """After each of its batches."""
        self._in_validation(self._places.after_batch())

    def _in_validation(self, place: int) -> None:
        if self.way.in_validation(self.batches, place):
            self.stop(in_validation=True)
        self._say_received()

    def _say_received(self) -> None:
        """Not in the handler: it may have interrupted a thread of this process that holds the log's lock."""
        if self.notices.number and not self._said_received:
            self._said_received = True
            self.log.warning(log_texts.RECEIVED, self.notices.number)

    def stop(self, *, in_validation: bool = False) -> None:
        """On all ranks, at the same place. Raises SystemExit(0), or what the save raised."""
        self._say_received()
        self._preempted = True
        if self.batches == 0:
            self._say(log_texts.NOTHING)
            raise SystemExit(0)
        self._say(log_texts.DETECTED)
        left = time_left(self.way.deadline, os.environ, monotonic=time.monotonic(), wall=time.time())
        if problem := shortage(left, self._save_times.last if self._save_times else None):
            self._say(problem)
        self._validation = in_validation or (False if validation_follows(self._trainer) else None)
        self._trainer.should_stop = True
        try:
            self._save()
        finally:
            self._validation = None
        raise SystemExit(0)

    def complete(self, checkpoint: dict[str, Any]) -> None:
        """Add to a checkpoint that is saved what it says of a validation."""
        if self._validation is not None:
            leave_validation_to_come(checkpoint, begun=self._validation)

    def _save(self) -> None:
        step = self._trainer.global_step
        began = time.monotonic()
        try:
            path = save_last(self._trainer)
        except Exception as error:
            self.log.error("%s", log_texts.failed(step, error))
            raise
        if path is None:
            self._say(
                f"Preemption: no checkpoint of step {step} is saved: the trainer has no ModelCheckpoint, or is a "
                "fast_dev_run"
            )
        else:
            self._say(log_texts.complete(step, time.monotonic() - began, path))

    def _say(self, text: str) -> None:
        if self._trainer.is_global_zero:
            self.log.warning("%s", text)

    def end(self) -> None:
        """The training has ended by itself; there is no place to stop at any more. May be called twice."""
        self.way.close()

    def close(self) -> None:
        """Everything back as it was; but the process that exits now is not to be ended sooner by a second signal."""
        self.end()
        self._patches.undo()
        self._loaders.undo()
        if self._preempted:
            self.notices.leave_in_force()
        else:
            self.notices.restore()


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


class Loaders(StayingWorkers):
    """The data loaders that a trainer takes into use: their workers stay when the signals come.

    Lightning's seeding of workers stays where it would be.
    """

    def watch(self, trainer: Any, patches: Patches) -> None:
        """From now on, each loader that this trainer takes into use has workers that stay."""

        def process(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for loader in (*args, *kwargs.values()):
                self.protect(loader, trainer.global_rank)
            return original(*args, **kwargs)

        patches.wrap(trainer.strategy, "process_dataloader", process)

    def protect(self, loader: Any, rank: int) -> None:
        """Before the loader's iterator is made."""
        self.of(loader, _seeding(rank))


def _seeding(rank: int) -> InitFn | None:
    """What Lightning would give a loader without a `worker_init_fn` (`seed_everything(workers=True)`)."""
    if not int(os.environ.get("PL_SEED_WORKERS") or 0):
        return None
    fabric = "lightning.fabric" if "lightning.fabric" in sys.modules else "lightning_fabric"
    return functools.partial(import_module(f"{fabric}.utilities.seed").pl_worker_init_function, rank=rank)
