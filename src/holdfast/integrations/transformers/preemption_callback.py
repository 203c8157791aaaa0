"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after an optimizer step; under ft_launcher, and with one process, also in evaluations) the trainer saves `checkpoint-N`
as it always does and the process exits with code 0. What always holds: a save that fails does not end with code 0; an
evaluation that was due, or was cut short, is done when the training continues; after the training handlers and loaders
are as they were. A signal before all ranks have come to `train` does what it would do without the callback.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from os import environ
from signal import SIGTERM
from typing import Any

from holdfast.callbacks import callback_log
from holdfast.fault_tolerance.stop.rules import END
from holdfast.preemption import log_texts
from holdfast.preemption.loader_workers import StayingWorkers
from holdfast.preemption.notices import Notices, parse_signal
from holdfast.preemption.stopping_place import Alone, Way, find_way
from holdfast.preemption.time_left import shortage, time_left
from holdfast.side_group import CollectiveFailed

from .training import SurroundingCallback, TrainCall

__all__ = ["PreemptionCallback"]

LOGGER = "nemo_logger.PreemptionCallback"
_LOADER_MAKERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")


class PreemptionCallback(SurroundingCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted.

    sig: the signal that says so: a number, a `signal.Signals` or a name. SIGTERM always does as well.

    Raises ValueError if `sig` is no signal, or none that a program can listen for.
    """

    def __init__(self, sig: Any = SIGTERM) -> None:
        self.sig = parse_signal(sig)
        self._run: PreemptibleTraining | None = None

    def begin(self, training: TrainCall) -> None:
        """Raises SystemExit(0) if all ranks know already that they are to stop."""
        self._run = PreemptibleTraining(training, {self.sig, int(SIGTERM)})
        _be_last(training.trainer, self)
        if not self._run.listen():
            notices = self._run.notices
            self._close()
            notices.raise_again()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation that the last start has left is done here."""
        super().on_train_begin(args, state, control)
        if self._run:
            self._run.train_begins()
        if self._training is not None:
            self._training.catch_up()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A boundary."""
        run = self._run
        if run is not None and run.after_step():
            ends_epoch = float(state.epoch or 0).is_integer()
            control.should_training_stop = True
            # What is due at the epoch's end comes after this; one save is enough.
            control.should_save = not ends_epoch and not control.should_evaluate

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the last step of an epoch was the place: after what is due here."""
        if self._run is not None and self._run.stops:
            control.should_training_stop = True
            control.should_save = not control.should_evaluate

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A boundary, in an evaluation."""
        if self._run is not None:
            self._run.in_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation without steps of its own."""
        if self._run is not None and self._run.stops:
            self._run.save_and_exit()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint is complete, on all ranks."""
        if self._run is not None and self._run.stops:
            self._run.exit()

    def finished(self, training: TrainCall) -> None:
        self._close()

    def failed(self, training: TrainCall, error: BaseException) -> None:
        if self._run is not None:
            self._run.say_failed(error)

    def end(self, training: TrainCall) -> None:
        self._close()

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}


def _be_last(trainer: Any, callback: PreemptionCallback) -> None:
    """Called after all others: it may end the process, and knows then what they have asked for."""
    callbacks = trainer.callback_handler.callbacks
    callbacks[:] = [each for each in callbacks if each is not callback] + [callback]


class PreemptibleTraining:
    """One training that the callback watches over. Nothing is changed before all ranks have come to `listen`, `close`
    puts back what that has changed, and no process exits with 0 unless the checkpoint is complete on all ranks.

    `signals` are the numbers of those that are notices."""

    def __init__(self, training: TrainCall, signals: set[int]) -> None:
        self.log = callback_log.named(LOGGER)
        self.notices = Notices(signals)
        self.stops = False
        """All ranks stop here, as soon as the checkpoint is saved."""
        self._training = training
        self._workers = StayingWorkers(signals)
        self._steps = self._in_evaluation = 0
        self._said_received = self._preempted = False
        self._began = 0.0
        self._way: Way = Alone(self.notices)

    def listen(self) -> bool:
        """From now on, on all ranks, a signal is a notice. Collective, and all may stop here.

        False: the ranks cannot ask each other (one ended meanwhile), and nothing here is of use.
        """
        try:
            self._way = find_way(self.notices)
            if not self.notices.install():
                self.log.warning(log_texts.DEAF)
            for name in _LOADER_MAKERS:
                self._training.patches.wrap(self._training.trainer, name, self._loader_made)
            stop = self._way.listening()
        except CollectiveFailed as error:
            self.log.warning(log_texts.ASKED_NOBODY, error)
            return False
        if stop:
            self._leave_at_once()
        return True

    def train_begins(self) -> None:
        """The first step comes. Raises SystemExit(0) if there need be none."""
        self.notices.install()
        if self._way.begin():
            self._leave_at_once()

    def after_step(self) -> bool:
        """After each optimizer step: whether all stop here."""
        self._steps += 1
        self._in_evaluation = 0
        if self._way.after_batch(self._steps):
            self._stop()
        if self.notices.number:
            self._say_received()
        return self.stops

    def in_evaluation(self) -> None:
        """After each batch of an evaluation. Raises SystemExit(0) when the checkpoint is complete."""
        self._in_evaluation = min(self._in_evaluation + 1, END - 1)
        if not self.stops and self._way.in_validation(self._steps, self._in_evaluation):
            if self._steps == 0:
                self._leave_at_once()
            self._stop()
        if self.notices.number:
            self._say_received()
        if self.stops:
            self.save_and_exit()

    def save_and_exit(self) -> None:
        """In an evaluation, which is left, or when it is over. Raises SystemExit(0), or what the save raised."""
        trainer = self._training.trainer
        self._training.leave_evaluation()
        trainer._save_checkpoint(trainer.model, trial=None)
        self.exit()

    def exit(self) -> None:
        """The trainer has saved. Raises SystemExit(0), or OSError if it is not known that all ranks have."""
        checkpoints = self._training.checkpoints
        if checkpoints.newest is None or not checkpoints.newest.endswith(f"-{self._training.step}"):
            raise OSError(
                f"the checkpoint of step {self._training.step} is not known to be complete on all ranks"
            )
        seconds = time.monotonic() - self._began
        self._say(log_texts.complete(self._training.step, seconds, checkpoints.newest))
        raise SystemExit(0)

    def say_failed(self, error: BaseException) -> None:
        """Where the save for a preemption has failed, on each rank."""
        if self.stops and not isinstance(error, SystemExit):
            self.log.error("%s", log_texts.failed(self._training.step, error))

    def close(self) -> None:
        """Everything back as it was; but the process that exits now is not to be ended sooner by a second signal."""
        self._way.close()
        self._workers.undo()
        if self._preempted:
            self.notices.leave_in_force()
        else:
            self.notices.restore()

    def _loader_made(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        loader = original(*args, **kwargs)
        self._workers.of(getattr(loader, "base_dataloader", loader))  # accelerate's have torch's within
        return loader

    def _stop(self) -> None:
        """On all ranks, at the same place."""
        self.stops = self._preempted = True
        self._began = time.monotonic()
        self._say_received()
        self._say(log_texts.DETECTED)
        left = time_left(self._way.deadline, environ, monotonic=time.monotonic(), wall=time.time())
        if problem := shortage(left, self._training.checkpoints.took):
            self._say(problem)

    def _leave_at_once(self) -> None:
        self._preempted = True
        self._say_received()
        self._say(log_texts.NOTHING)
        raise SystemExit(0)

    def _say_received(self) -> None:
        """Not in the handler: it may have interrupted a thread of this process that holds the log's lock."""
        if self.notices.number and not self._said_received:
            self._said_received = True
            self.log.warning(log_texts.RECEIVED, self.notices.number)

    def _say(self, text: str) -> None:
        if self._training.rank == 0:
            self.log.warning("%s", text)
