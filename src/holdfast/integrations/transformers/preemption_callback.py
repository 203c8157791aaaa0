"""The callback that ends a preempted training in good order: one complete checkpoint, of the same step on all ranks.

A signal to any process of the training, or to ft_launcher, is a notice. At the next boundary on which all ranks agree
(after an optimizer step; under ft_launcher, and with one process, also in evaluations) the trainer saves `checkpoint-N`
as it always does and the process exits with code 0. What always holds: a save that fails does not end with code 0; an
evaluation that was due, or was cut short, is done when the training continues; after the training handlers and loaders
are as they were. A signal before all ranks have come to `train` does what it would do without the callback.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from holdfast.callbacks.loader_workers import StayingWorkers
from holdfast.callbacks.preemption import Preemption, PreemptionArguments
from holdfast.fault_tolerance.stop.rules import END

from .training import SurroundingCallback, TrainCall

__all__ = ["PreemptionCallback"]

_LOADER_MAKERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")


class PreemptionCallback(PreemptionArguments, SurroundingCallback):
    """Saves a checkpoint and exits with code 0 when the job is to be preempted."""

    place: ClassVar[int] = 1
    """It may end the process, and knows then what all others have asked for."""

    _run: PreemptibleTraining | None = None

    def begin(self, training: TrainCall) -> None:
        """Raises SystemExit(0) if all ranks know already that they are to stop."""
        self._run = run = PreemptibleTraining(training, self.sig)
        if not run.listen(run.take_over):
            self._close()
            run.notices.raise_again()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation that the last start has left is done here."""
        super().on_train_begin(args, state, control)
        if self._run:
            self._run.begin()
        if self._training is not None:
            self._training.catch_up()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A boundary."""
        if self._run is not None and self._run.after_step():
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
        """Said where the save for a preemption has failed, on each rank."""
        if self._run is not None and self._run.stops and not isinstance(error, SystemExit):
            self._run.failed(training.step, error)

    def end(self, training: TrainCall) -> None:
        self._close()

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": None}


class PreemptibleTraining(Preemption):
    """One call of `train`. No process exits with 0 unless the checkpoint is complete on all ranks."""

    def __init__(self, training: TrainCall, sig: int) -> None:
        super().__init__(sig, training.rank)
        self._training = training
        self._workers = StayingWorkers(self.signals)
        self._in_evaluation = 0
        """Batches of the evaluation that runs."""

    def take_over(self) -> None:
        """The trainer's data loaders."""
        for name in _LOADER_MAKERS:
            self._training.patches.wrap(self._training.trainer, name, self._loader_made)

    def after_step(self) -> bool:
        """After each optimizer step: whether all stop here."""
        self._in_evaluation = 0
        if self.after_batch():
            self.stop(self._training.checkpoints.took)
        return self.stops

    def in_evaluation(self) -> None:
        """After each batch of an evaluation. Raises SystemExit(0) when the checkpoint is complete."""
        self._in_evaluation = min(self._in_evaluation + 1, END - 1)
        if not self.stops and self.in_validation(self._in_evaluation):
            self.stop(self._training.checkpoints.took)
        if self.stops:
            self.save_and_exit()

    def save_and_exit(self) -> NoReturn:
        """In an evaluation, which is left, or when it is over. Raises SystemExit(0), or what the save raised."""
        trainer = self._training.trainer
        self._training.leave_evaluation()
        trainer._save_checkpoint(trainer.model, trial=None)
        self.exit()

    def exit(self) -> NoReturn:
        """The trainer has saved. Raises SystemExit(0), or OSError if it is not known that all ranks have."""
        step, newest = self._training.step, self._training.checkpoints.newest
        if newest is None or not newest.endswith(f"-{step}"):
            raise OSError(f"the checkpoint of step {step} is not known to be complete on all ranks")
        self.complete(step, newest)

    def close(self) -> None:
        """Everything back as it was. May be called twice."""
        self._workers.undo()
        super().close()

    def _loader_made(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        loader = original(*args, **kwargs)
        self._workers.of(getattr(loader, "base_dataloader", loader))  # accelerate's have torch's within
        return loader
