"""`FaultToleranceCallback` and `FaultToleranceSectionsCallback`: supervision of a training; the flag for auto-resume.

Heartbeats are sent in `train` only, after every optimizer step with the step. Sections: "setup" from the begin of
`train` to the first batch, "step" around each optimizer step with its batches, and around each batch of an evaluation,
"checkpointing" around each save. Both may be in the same trainer.

What always holds: only `train` is supervised; `evaluate` and `predict` by themselves need no launcher. The errors of a
wrong start are raised at the begin of `train`; from then on nothing raises because supervision fails. Limits are
learned by all ranks or by none, and the flag is created when `train` has come to its end, before supervision ends.

Does not cover: what the program does after `train`, a last `save_model` for example: the flag is there by then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.callbacks.arguments import FaultToleranceArguments, SectionsArguments
from holdfast.callbacks.completion import why_complete
from holdfast.callbacks.supervision import HeartbeatTraining, SectionTraining, SupervisedTraining
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, STEP

from .training import SurroundingCallback, TrainCall

if TYPE_CHECKING:
    EarlyStoppingCallback: Any = None
else:
    from transformers import EarlyStoppingCallback

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback"]


class SupervisedCallback(FaultToleranceArguments, SurroundingCallback):
    """Subclasses say what they do at the hooks of transformers."""

    KIND: ClassVar[type[SupervisedTraining]]

    _run: Any = None
    """The training (a `KIND`) that is supervised now."""

    @property
    def is_initialized(self) -> bool:
        """Whether a training is supervised now."""
        return self._run is not None and self._run.client.is_initialized

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError without `ft_launcher`, or without FAULT_TOL_FINISHED_FLAG_FILE where `autoresume` needs
        it, or where there are no limits at all; ValueError if states cannot be kept; RankMonitorClientError if the
        program uses a client of its own."""
        folder = Path(self.exp_dir or Path(training.trainer.args.output_dir) / self.FT_DIR_NAME).absolute()
        self._run = self.KIND(self, training.rank, folder, lambda: training.step)
        self._watch(training)

        def resumes() -> None:
            self._run.rules.loaded = True

        training.on_resume.append(resumes)

    def finished(self, training: TrainCall) -> None:
        if self._run is not None:
            self._run.finish(lambda: _why_complete(training))

    def failed(self, training: TrainCall, error: BaseException) -> None:
        if self._run is not None:
            self._run.fail(error)

    def end(self, training: TrainCall) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end()

    def _watch(self, training: TrainCall) -> None:
        """The trainer's saves, and what else has no hook, from now on until the training ends."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they supervise nothing yet."""
        return {**super().__getstate__(), "_run": None}


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer trains.

    The constructor describes the arguments. What the begin of `train` raises is described at `begin`.
    """

    KIND = HeartbeatTraining

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        super().on_train_begin(args, state, control)
        self._beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat with the step."""
        if self._run is not None:
            self._run.iterate()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat, where gradients are accumulated."""
        self._beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A heartbeat."""
        self._beat()

    def _watch(self, training: TrainCall) -> None:
        run = self._run

        def saved() -> None:
            run.saved()
            run.beat()

        training.checkpoints.before.append(run.saving)
        training.checkpoints.after.append(saved)

    def _beat(self) -> None:
        if self._run is not None:
            self._run.beat()


class FaultToleranceSectionsCallback(SectionsArguments, SupervisedCallback):
    """Reports the trainer's sections setup, step and checkpointing to the launcher's monitor while it trains.

    The constructor describes the arguments. The begin of `train` raises what it raises in `FaultToleranceCallback`,
    and ValueError unless `rank_section_timeouts` has limits for exactly these sections.
    """

    KIND = SectionTraining

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, and with the first one the setup is over."""
        if self._run is not None:
            self._run.rules.iterations += 1
            self._run.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is over; after a checkpoint, learn."""
        if self._run is not None:
            self._run.end_step()
            self._run.learn_if_due()

    def _watch(self, training: TrainCall) -> None:
        run = self._run

        def predict(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with run.within(STEP):
                return original(*args, **kwargs)

        training.patches.wrap(training.trainer, "prediction_step", predict)
        training.checkpoints.around = lambda: run.within(CHECKPOINTING)
        training.checkpoints.after.append(run.rules.saved)


def _why_complete(training: TrainCall) -> str:
    """Whether `max_steps`, of all epochs, are done, or a callback for early stopping has lost its patience."""
    stopped_early = any(
        isinstance(each, EarlyStoppingCallback)
        and each.early_stopping_patience_counter >= each.early_stopping_patience
        for each in training.trainer.callback_handler.callbacks
    )
    return why_complete(
        None,  # few iterations are no end: Trainer always knows max_steps
        global_step=training.step,
        max_steps=int(training.trainer.state.max_steps),
        asked_to_stop=True,
        early_stopping=stopped_early,
    )
