"""Our callbacks for `Trainer`: supervision and the flag for auto-resume, preemption, straggler reports, and all in one.

Sections: "setup" from the begin of `train` to the first batch, "step" around each optimizer step with its batches and
around each batch of an evaluation, "checkpointing" around each save. What always holds: only `train` is supervised, and
`evaluate` and `predict` need no launcher; the errors of a wrong start are raised at the begin of `train`, and from then
on nothing raises because supervision fails; a preemption whose save fails does not end with code 0, and an evaluation
that was due, or was cut short, is done when the training continues; all ranks stop after the same step or none does.

`StragglerDetectionCallback` measures `trainer.compute_loss` while the model trains. DistributedDataParallel may first
give all ranks rank 0's buffers, where ranks wait for one another, so there the section begins where the wrapper calls
the model.

Does not cover: what the program does after `train`, a last `save_model` for example: the flag is there by then. A rank
that never comes to another boundary (it hangs: `ft_launcher` ends it). Stragglers in evaluation and prediction; weights
that are gathered in the forward pass (FSDP); a stop under `save_strategy="best"`, which may end without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.callbacks.arguments import FaultToleranceArguments, SectionsArguments
from holdfast.callbacks.completion import why_complete
from holdfast.callbacks.preemption import Preemption, PreemptionArguments
from holdfast.callbacks.signals import StayingWorkers
from holdfast.callbacks.straggler_findings import SECTION
from holdfast.callbacks.stragglers import StragglerArguments, StragglerDetection, measure_from_forward
from holdfast.callbacks.supervision import HeartbeatTraining, SectionTraining, SupervisedTraining
from holdfast.fault_tolerance.stop.rules import END
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, STEP
from holdfast.straggler.detector import Detector

from .training import SurroundingCallback, TrainCall

if TYPE_CHECKING:
    EarlyStoppingCallback: Any = None
else:
    from transformers import EarlyStoppingCallback

__all__ = [
    "FaultToleranceCallback",
    "FaultToleranceSectionsCallback",
    "HoldfastCallback",
    "PreemptionCallback",
    "StragglerDetectionCallback",
]

_LOADER_MAKERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")


class SupervisedCallback(FaultToleranceArguments, SurroundingCallback):
    """Subclasses say what they do at the hooks of transformers."""

    KIND: ClassVar[type[SupervisedTraining]]

    _run: Any = None
    """The training (a `KIND`) that is supervised now."""

    @property
    def is_initialized(self) -> bool:
        return self._run is not None and self._run.client.is_initialized

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError without `ft_launcher`, or without FAULT_TOL_FINISHED_FLAG_FILE where `autoresume` needs
        it, or where there are no limits at all; ValueError if states cannot be kept; RankMonitorClientError if the
        program uses a client of its own."""
        folder = Path(self.exp_dir or Path(training.trainer.args.output_dir) / self.FT_DIR_NAME).absolute()
        self._run = self.KIND(self, training.rank, folder, lambda: training.step)
        self._run.rules.loaded = training.step > 0  # one that is added late misses `on_train_begin`
        self._run.rules.evaluation_to_come = training.trainer.args.eval_strategy != "no"
        self._watch(training)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is loaded, if there is one."""
        super().on_train_begin(args, state, control)
        if self._run is not None:
            self._run.rules.loaded = state.global_step > 0

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.rules.evaluation_to_come = False

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


class FaultToleranceCallback(SupervisedCallback):
    """Sends heartbeats to the launcher's monitor while the trainer trains.

    The constructor describes the arguments. What the begin of `train` raises is described at `begin`.
    """

    KIND = HeartbeatTraining

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control)
        self._beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.iterate()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._beat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control)
        self._beat()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
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
        if self._run is not None:
            self._run.rules.iterations += 1
            self._run.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.end_step()
            self._run.learn_if_due()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last batches may make no whole step, and that step has no end."""
        if self._run is not None:
            self._run.end_step()

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
        if self._run is not None and self._run.after_step():
            control.should_training_stop = True
            if float(state.epoch or 0).is_integer():
                # What is due at the epoch's end comes after this; one save is enough. An evaluation, which would be
                # left for the save, comes then, when the hooks of the epoch's end have run.
                control.should_save = False
                self._run.evaluates, control.should_evaluate = control.should_evaluate, False
            else:
                control.should_save = not control.should_evaluate

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Where the last step of an epoch was the place: after what is due here."""
        if self._run is not None and self._run.stops:
            control.should_training_stop = True
            control.should_evaluate = control.should_evaluate or self._run.evaluates
            control.should_save = not control.should_evaluate

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
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


class PreemptibleTraining(Preemption):
    """One call of `train`. No process exits with 0 unless the checkpoint is complete on all ranks."""

    def __init__(self, training: TrainCall, sig: int) -> None:
        super().__init__(sig, training.rank)
        self._training = training
        self._workers = StayingWorkers(self.signals)
        self._in_evaluation = 0
        """Batches of the evaluation that runs."""
        self.evaluates = False
        """An evaluation was due at the step after which all stop, the last one of its epoch."""

    def take_over(self) -> None:
        for name in _LOADER_MAKERS:
            self._training.patches.wrap(self._training.trainer, name, self._loader_made)

    def stop(self, last_save: float | None = None) -> None:
        """As in the base class. The checkpoint has the optimizer, which `save_only_model` may leave out of others: the
        next start continues from it."""
        self._training.trainer.args.save_only_model = False
        super().stop(last_save)

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


class StragglerDetectionCallback(StragglerArguments, SurroundingCallback):
    """Reports the performance of each rank every `report_time_interval` seconds of training.

    The constructor describes the arguments; `enable_ptl_logging` gives the scores to `trainer.log`.
    """

    _run: StragglerDetection | None = None
    _stops = False

    def begin(self, training: TrainCall) -> None:
        """Raises RuntimeError if the detector is initialised already."""
        self._run = StragglerDetection(self._settings, training.rank, "trainer.train()")
        training.patches.wrap(training.trainer, "compute_loss", _measured)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        training, run = self._training, self._run
        if training is None or run is None:
            return
        if run.after_step(lambda metrics: _give(training.trainer, control, metrics)):
            self._stops = control.should_training_stop = True
            training.trainer.args.save_only_model = False  # the next start continues from it
            # What is due at the epoch's end comes after this; one save is enough.
            control.should_save = not float(state.epoch or 0).is_integer()
        elif control.should_training_stop:
            run.finish()  # while the loggers still take metrics

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._stops:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raises SystemExit(1) if the training was to stop."""
        if self._stops and self._training is not None and self._run is not None:
            if self._training.rank == 0:
                self._run.log.info("Saved checkpoint-%d before terminating", state.global_step)
            raise SystemExit(1)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the last report; loggers may be closed by now. Raises SystemExit(1) if the training was to stop and
        another decided that nothing is saved."""
        if self._run is not None:
            self._run.finish(to_loggers=False)
        if self._stops and self._run is not None:
            self._run.log.warning("No checkpoint was saved before terminating")
            raise SystemExit(1)

    def failed(self, training: TrainCall, error: BaseException) -> None:
        if self._stops and self._run is not None and not isinstance(error, SystemExit):
            self._run.log.error("Not saved before terminating: %s", error)

    def end(self, training: TrainCall) -> None:
        self._stops = False
        run, self._run = self._run, None
        if run is not None:
            run.close()


def _give(trainer: Any, control: Any, metrics: dict[str, float]) -> None:
    """To rank 0's loggers only: what they ask for in return, the other ranks would not do."""
    asked, whole = dict(vars(control)), trainer.control
    try:
        trainer.log(dict(metrics))
    finally:
        vars(control).update(asked)
        trainer.control = whole


def _measured(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `compute_loss` as a section, while the model trains and the detector is initialised."""
    from torch.nn.parallel import DistributedDataParallel

    model = args[0] if args else kwargs.get("model")
    if not Detector.initialized or not getattr(model, "training", False):
        return original(*args, **kwargs)
    if isinstance(model, DistributedDataParallel):
        return measure_from_forward(model.module, lambda: original(*args, **kwargs))
    with Detector.detection_section(SECTION):
        return original(*args, **kwargs)


class HoldfastCallback(SurroundingCallback):
    """`Trainer(callbacks=[HoldfastCallback()])`: hangs are found, preemptions saved, slow ranks named.

    The finished flag is made where FAULT_TOL_FINISHED_FLAG_FILE names it; timeouts are learned.
    """

    def __init__(self) -> None:
        self.parts = (FaultToleranceCallback(), PreemptionCallback(), StragglerDetectionCallback())
