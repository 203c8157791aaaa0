"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after an optimizer step; under ft_launcher, and with one process, also in evaluations) the trainer saves `checkpoint-N`
as it always does and the process exits with code 0. What always holds: a save that fails does not end with code 0; an
evaluation that was due, or was cut short, is done when the training continues; after the training handlers and loaders
are as they were. A signal before all ranks have come to `train` does what it would do without the callback.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it).
"""

from __future__ import annotations

from signal import SIGTERM
from typing import Any

from holdfast.preemption.notices import parse_signal

from . import evaluation_to_come
from .preemptible_training import PreemptibleTraining
from .surrounding import SurroundingCallback
from .train_call import TrainCall

__all__ = ["PreemptionCallback"]


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
            evaluation_to_come.catch_up(self._training)

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
