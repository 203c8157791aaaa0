"""One training that a `PreemptionCallback` watches over, from its setup until it ends.

What always holds: nothing is changed before all ranks have come to `listen`, so until then a signal does what it would
without the callback; `close` puts back what `listen` has changed, however far it came.
Does not cover: which hook of the trainer calls what, see :mod:`.preemption_callback`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from os import environ
from typing import Any

from holdfast.callbacks import callback_log
from holdfast.patches import Patches
from holdfast.preemption import log_texts
from holdfast.preemption.notices import Notices
from holdfast.preemption.stopping_place import Alone, Way, find_way
from holdfast.preemption.time_left import shortage, time_left
from holdfast.side_group import CollectiveFailed

from .each_step import EachStep
from .framework import frameworks
from .last_checkpoint import save_last
from .lightnings_handlers import keep_lightning_off
from .loader_workers import Loaders
from .save_times import SaveTimes
from .validation_places import ValidationPlaces
from .validation_progress import validation_to_come
from .whole_checkpoints import keep_whole

LOGGER = "nemo_logger.PreemptionCallback"


class PreemptibleFit:
    """One fit of this trainer; `signals` are the numbers of those that are notices."""

    def __init__(self, trainer: Any, signals: set[int], arm: Callable[[], None]) -> None:
        """`arm`: look after this batch whether to stop; called in a signal handler."""
        self.log = callback_log.named(LOGGER)
        self.each = EachStep.of(trainer, self)
        self.notices = Notices(signals)
        self.notices.wake = arm
        self.places = ValidationPlaces()
        self._trainer = trainer
        self._signals = signals
        self._patches = Patches()
        self._loaders = Loaders(signals)
        self._save_times = SaveTimes()
        self._said_received = self._preempted = False
        self.way: Way = Alone(self.notices)

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

    @property
    def batches(self) -> int:
        """Training batches of this fit so far, with the one that runs."""
        return self.each.batches

    def looks_on(self) -> bool:
        """After each look: whether the next batch needs one. If not, each step looks whether anything is asked."""
        point = self.way.point
        # After a notice at the end of each batch only: so that all may stop after this one, and not after the next.
        self.each.looks(None if self.notices.number else point)
        return self.notices.number != 0 or (point.attentive if point else self.way.asks_always)

    def _take_over(self) -> None:
        trainer = self._trainer
        if not self.notices.install():
            self.log.warning(log_texts.DEAF)
        connector = getattr(trainer, "_signal_connector", None)
        keep_lightning_off(connector, self._signals, self._patches, self.notices.install)
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
            self.log.warning(log_texts.RECEIVED, self.notices.number)

    def stop(self, *, in_validation: bool = False) -> None:
        """On all ranks, at the same place. Raises SystemExit(0), or what the save raised."""
        self.say_received()
        self._preempted = True
        if self.batches == 0:
            self._say(log_texts.NOTHING)
            raise SystemExit(0)
        self._say(log_texts.DETECTED)
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
        self.each.looks(None)
        self.way.close()

    def close(self) -> None:
        """Everything back as it was; but the process that exits now is not to be ended sooner by a second signal."""
        self.end()
        self.each.leave(self._trainer, self)
        self._patches.undo()
        self._loaders.undo()
        if self._preempted:
            self.notices.leave_in_force()
        else:
            self.notices.restore()
