"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after a training batch; under ft_launcher, and with one process, also in validations) the ranks save a checkpoint where
`fit(ckpt_path="last")` finds it and exit with code 0. What always holds: a save that fails does not end with code 0;
after the training, normal or not, handlers, loaders and strategy are as they were. In validate, test and predict,
where there is nothing to save, it only keeps Lightning's handler, which can deadlock, out of force.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it);
places between boundaries, so at most the running step is waited for.
"""

from __future__ import annotations

import time
from os import environ
from signal import SIGTERM
from typing import Any, ClassVar

from . import callback_log
from .after_batch import AfterBatchCallback
from .framework import frameworks
from .last_checkpoint import save_last
from .loader_workers import Loaders
from .notices import Notices, keep_lightning_off, parse_signal
from .patches import Patches
from .stopping_place import ValidationPlaces, Way, find_way
from .time_left import SaveTimes, shortage, time_left
from .validation_progress import validation_to_come
from .whole_checkpoints import keep_whole

LOGGER = "nemo_logger.PreemptionCallback"
RECEIVED = "Received signal %d, initiating graceful stop"
DETECTED = "Preemption detected, saving checkpoint and exiting"


class PreemptionCallback(AfterBatchCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted.

    Args:
        sig: the signal that says so: a number, a `signal.Signals` or a name. SIGTERM always does as well.

    Raises:
        ValueError: `sig` is no signal, or none that a program can listen for.
    """

    order: ClassVar[int] = 30

    def __init__(self, sig: Any = SIGTERM) -> None:
        self.sig = parse_signal(sig)
        self._fit: _Fit | None = None
        self._elsewhere = Patches()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fit": None, "_elsewhere": Patches()}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(None)
        if stage == "fit":
            self._fit = _Fit(trainer, {self.sig, int(SIGTERM)})
            self.enlist(trainer)
        else:  # nothing to save: what the program has set is in force, by default the end
            keep_lightning_off(getattr(trainer, "_signal_connector", None), {int(SIGTERM)}, self._elsewhere)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.notices.install()
            if self._fit.way.begin():
                self._fit.stop()

    def after_batch(self, trainer: Any, pl_module: Any) -> None:
        fit = self._fit
        if fit is None:
            return
        fit.batches = batches = fit.batches + 1
        if fit.way.after_batch(batches):
            fit.stop()
        if fit.notices.number:
            fit.say_received()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.in_validation(self._fit.places.start())

    def on_validation_batch_end(self, trainer: Any, *_batch: Any) -> None:
        if self._fit:
            self._fit.in_validation(self._fit.places.after_batch())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._fit:
            self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        fit, self._fit = self._fit, None
        self._elsewhere.undo()
        if fit is not None:
            fit.close()
        if trainer is not None:
            self.dismiss(trainer)


class _Fit:
    """One training, from its setup until it ends."""

    def __init__(self, trainer: Any, signals: set[int]) -> None:
        self.log = callback_log.named(LOGGER)
        self.batches = 0
        self.notices = Notices(signals)
        self.places = ValidationPlaces()
        self._trainer = trainer
        self._patches = Patches()
        self._loaders = Loaders(signals)
        self._save_times = SaveTimes()
        self._said_received = self._preempted = False
        self._listen(signals)
        self.way: Way = find_way(self.notices)

    def _listen(self, signals: set[int]) -> None:
        trainer = self._trainer
        if not self.notices.install():
            self.log.warning(
                "PreemptionCallback: this training does not run in the main thread, where Python allows no signal "
                "handlers: it stops when ft_launcher or another rank says so, and not for a signal to this process"
            )
        connector = getattr(trainer, "_signal_connector", None)
        keep_lightning_off(connector, signals, self._patches, self.notices.install)
        keep_whole(trainer, self._patches)
        self._save_times.watch(trainer, self._patches)
        self._loaders.watch(trainer, self._patches)
        loop = getattr(getattr(trainer.fit_loop, "epoch_loop", None), "val_loop", None)
        if callable(getattr(loop, "_store_dataloader_outputs", None)):
            self._patches.wrap(loop, "_store_dataloader_outputs", self._before_reductions)
        kinds = tuple(module.callbacks.ModelCheckpoint for module in frameworks())
        if trainer.is_global_zero and not any(isinstance(each, kinds) for each in trainer.callbacks):
            self.log.warning(
                "PreemptionCallback: this trainer has no ModelCheckpoint, which says where checkpoints are kept: when "
                "preempted it will exit without saving one"
            )

    def _before_reductions(self, store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.in_validation(self.places.after_loader())
        return store(*args, **kwargs)

    def in_validation(self, place: int) -> None:
        """At this place of a validation of the training, or of the sanity check."""
        if self.way.in_validation(self.batches, place):
            self.stop(in_validation=True)
        if self.notices.number:
            self.say_received()

    def say_received(self) -> None:
        """Not in the handler: it may have interrupted a thread of this process that holds the log's lock."""
        if self.notices.number and not self._said_received:
            self._said_received = True
            self.log.warning(RECEIVED, self.notices.number)

    def stop(self, *, in_validation: bool = False) -> None:
        """On all ranks, at the same place. Raises SystemExit(0), or what the save raised."""
        self.say_received()
        self._preempted = True
        if self.batches == 0:
            self._say(
                "Preemption detected; nothing was trained in this start and there is nothing to save, exiting"
            )
            raise SystemExit(0)
        self._say(DETECTED)
        left = time_left(self.way.deadline, environ, monotonic=time.monotonic(), wall=time.time())
        if problem := shortage(left, self._save_times.last):
            self._say(problem)
        with validation_to_come(self._trainer, begun=in_validation):
            self._trainer.should_stop = True
            self._save()
        raise SystemExit(0)

    def _save(self) -> None:
        step = self._trainer.global_step
        began = time.monotonic()
        try:
            path = save_last(self._trainer)
        except Exception as error:
            self.log.error(
                "Preemption: the checkpoint of step %d could not be saved: %s; what was saved before is still "
                "there, and this process ends with the error",
                step,
                error,
            )
            raise
        if path is None:
            self._say(
                f"Preemption: no checkpoint of step {step} is saved: the trainer has no ModelCheckpoint, or is a "
                "fast_dev_run"
            )
        else:
            took = time.monotonic() - began
            self._say(f"Preemption: the checkpoint of step {step} is complete after {took:.1f} s: {path}")

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
