"""One call of `Trainer.train`, which our callbacks surround: transformers passes them neither the trainer nor the end.

`on_init_end` comes when a trainer is made with its callbacks; from then on its class has a wrapped `train`, which does
nothing for other trainers. Both hooks lack the trainer, so it is looked for in the calls that led to them. What always
holds: a trainer without such a callback is untouched; each callback's `begin` is followed by one `end`, in the opposite
order, after `finished` or `failed`, whatever the others raise; the checkpoint that a training resumes from is the same
on all ranks.

`Trainer` asks whether all steps are done only after a step; here a start from the last step trains none. It evaluates
before it saves: a file in the checkpoint says that an evaluation was left out, and is to be done.

Does not cover: the first training of a callback that came by `add_callback`, which calls no hook: what is missing then
is logged once transformers has loaded the checkpoint, and where it fails in that, nothing of ours has run. An
evaluation that was to be followed by a save under `save_strategy="best"`; the best model with transformers 4.46, which
decides on it only when it saves.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.callbacks import arguments
from holdfast.callbacks.completion import record_chosen
from holdfast.checkpoints.complete import chosen_by_rank_0
from holdfast.patches import Patches
from holdfast.side_group import CollectiveFailed, SideGroup

from .checkpoints import WholeCheckpoints, choose

if TYPE_CHECKING:
    # transformers is not installed where types are checked; the hooks that are used are checked by running them.
    class TrainerCallback:
        """A callback of transformers."""

    Trainer: Any = None
    VERSION = ""
else:
    from transformers import Trainer, TrainerCallback
    from transformers import __version__ as VERSION

TESTED = ((4, 46), (5, 24))
"""The first and the last version of transformers that were tested; docs/versions.md."""
EVALUATION_TO_COME = "holdfast-evaluation-to-come.txt"
LOGGER = "holdfast.integrations.transformers"


class TrainCall:
    """Made on all ranks together; always followed by `close`."""

    late: ClassVar[TrainCall | None] = None
    """One that began late: an exception may have ended it unnoticed, and then the next one closes it."""

    def __init__(self, trainer: Any) -> None:
        arguments.refuse_untested("transformers", VERSION, TESTED)
        if TrainCall.late is not None:
            TrainCall.late.close()
        self.trainer = trainer
        self.rank = int(trainer.args.process_index)
        self.patches = Patches()
        self.side = SideGroup()
        self.checkpoints = WholeCheckpoints(trainer, self.side)
        self.resumed: Any = None
        """The checkpoint that the training resumes from; None from the start."""
        self._begun = list[SurroundingCallback]()
        self._at_the_end = ExitStack()
        self._at_the_end.callback(self.side.close)
        self._at_the_end.callback(self.patches.undo)

    @property
    def step(self) -> int:
        """Optimizer steps, of earlier starts as well."""
        return int(self.trainer.state.global_step)

    def begin(self, resume: Any) -> None:
        """Begin with all callbacks. `resume` is `train`'s argument: True is the last complete checkpoint, or none.
        Collective."""
        handler = self.trainer.callback_handler
        ours = _ours(self.trainer)
        for part in [part for each in ours for part in each.parts]:
            if not any(isinstance(each, type(part)) for each in ours):
                ours.append(part)
                handler.callbacks = [*handler.callbacks, part]
                self._at_the_end.callback(handler.remove_callback, part)
        # A new list, as the handler may be walking the old one.
        handler.callbacks = sorted(handler.callbacks, key=_place)
        for each in ours:
            self._at_the_end.callback(_end, each, self)
            each._training = self
            each.begin(self)
            self._begun.append(each)
        if resume is True:
            resume = self._last_complete()
        self.resumed = resume or None
        if self.resumed is not None and self.trainer.is_world_process_zero():
            record_chosen(os.path.abspath(self.resumed))
        self.checkpoints.watch(self.patches)
        self._train_no_more()

    def finished(self) -> None:
        """The training has come to its end."""
        for each in self._begun:
            each.finished(self)

    def failed(self, error: BaseException) -> None:
        """An exception ends it."""
        for each in reversed(self._begun):
            each.failed(self, error)

    def close(self) -> None:
        """Everything back as it was. May be called twice."""
        if TrainCall.late is self:
            TrainCall.late = None
        self._at_the_end.close()

    def leave_evaluation(self) -> None:
        """The checkpoint that is saved next is one before its evaluation, done where the training continues."""

        def note(place: str) -> None:
            with open(os.path.join(place, EVALUATION_TO_COME), "w", encoding="utf-8") as file:
                file.write("The evaluation of this step comes when the training resumes from here.\n")

        self.checkpoints.within = note

    def evaluation_is_due(self) -> bool:
        """As rank 0 sees it: an evaluation that only some ranks begin would wait for the others.

        Raises CollectiveFailed.
        """
        own = os.path.exists(os.path.join(self.resumed, EVALUATION_TO_COME))
        if self.side.failed:
            return own
        return self.side.broadcast([float(own)], patience=self.side.setup_timeout) == [1.0]

    def catch_up(self) -> None:
        """Evaluate, if the checkpoint that the training resumes from asks for it. Called by all ranks."""
        if self.resumed is None or not self.evaluation_is_due():
            return
        metrics = self.trainer._evaluate(None, None)
        if hasattr(self.trainer, "_determine_best_metric"):
            if self.trainer._determine_best_metric(metrics=metrics, trial=None):
                # Else the trainer notes it when it saves the next one, which may never come.
                self.trainer.state.best_model_checkpoint = self.resumed

    def _last_complete(self) -> str:
        folder = self.trainer.args.output_dir
        try:
            return chosen_by_rank_0(self.side, folder, lambda: choose(folder))
        except CollectiveFailed as why:
            raise RuntimeError(
                f"the ranks cannot agree on a checkpoint in {folder} to resume from: the choice of rank 0 was not "
                f"received ({why})"
            ) from why

    def _train_no_more(self) -> None:
        """Where all steps are done. Does nothing where this transformers has no method for an epoch."""
        trainer = self.trainer
        log = arguments.named(LOGGER)

        def unless_done(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            state = trainer.state
            if not 0 < state.max_steps <= state.global_step:
                return original(*args, **kwargs)
            if self.rank == 0:
                log.info("all %d steps are done: there is nothing to train", state.max_steps)
            trainer.control.should_training_stop = True
            return None

        if hasattr(trainer, "_run_epoch"):
            self.patches.wrap(trainer, "_run_epoch", unless_done)


class SurroundingCallback(TrainerCallback):
    """Subclasses do their work between `begin` and `end`; all ranks call these together."""

    parts: tuple[SurroundingCallback, ...] = ()
    """Callbacks that are in the trainer as well, for one training, unless it has one of that kind."""
    place: ClassVar[int] = 0
    """Above 0: after the user's callbacks."""
    _training: TrainCall | None = None

    def begin(self, training: TrainCall) -> None:
        """`train` was called. May raise."""

    def finished(self, training: TrainCall) -> None:
        """`train` has come to its end. Raises nothing."""

    def failed(self, training: TrainCall, error: BaseException) -> None:
        """An exception ends `train`: a failure, or a clean stop like `sys.exit(0)`. Raises nothing."""

    def end(self, training: TrainCall) -> None:
        """Give everything back. Raises nothing."""

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is made, with this callback."""
        _surround(_caller(self))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """States are restored; the first step comes. One that came by `add_callback` begins here. May raise then."""
        if self._training is None:
            trainer = _caller(self)
            _surround(trainer)  # its next training
            _begin_late(trainer, type(self).__name__)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they surround nothing yet."""
        working = ("_training", "_run", "_stops")
        return {name: value for name, value in vars(self).items() if name not in working}


class _LateEnd(TrainerCallback):
    """The last callback of a training that began late: it ends what that began."""

    def __init__(self, training: TrainCall) -> None:
        self._training = training

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.finished()
        self._training.close()


def _ours(trainer: Any) -> list[SurroundingCallback]:
    return [each for each in trainer.callback_handler.callbacks if isinstance(each, SurroundingCallback)]


def _place(callback: Any) -> int:
    return callback.place if isinstance(callback, SurroundingCallback) else 0


def _end(callback: SurroundingCallback, training: TrainCall) -> None:
    callback._training = None
    callback.end(training)


def _caller(callback: SurroundingCallback) -> Any:
    """The trainer that calls a hook of this callback now. Raises RuntimeError if none does."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back
    raise RuntimeError(f"{type(callback).__name__} is for transformers.Trainer, and no such trainer calls it")


def _surround(trainer: Any) -> None:
    """From now on a call of `train` of this trainer, or of a copy of it, is `_train`."""
    trainer._holdfast_surrounds = _Surrounds(type(trainer))


class _Surrounds:
    """In a trainer: its class has a `train` that is `_train` for trainers with one of these, and unchanged for others.

    A function in the trainer would train the first one when a copy is asked to; a subclass could not be pickled. Where
    a trainer is unpickled, its class there gets such a `train` too.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        owner = next(each for each in kind.__mro__ if "train" in vars(each))
        original = vars(owner)["train"]
        if hasattr(original, "holdfast_surrounds"):
            return

        @functools.wraps(original)
        def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(trainer, type(trainer))
            if not hasattr(trainer, "_holdfast_surrounds"):
                return bound(*args, **kwargs)
            return _train(trainer, bound, *args, **kwargs)

        train.holdfast_surrounds = True  # type: ignore[attr-defined]
        owner.train = train

    def __reduce__(self) -> tuple[Any, ...]:
        return _Surrounds, (self._kind,)


def _train(trainer: Any, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `train` of this trainer, with what its callbacks do around it."""
    ours = _ours(trainer)
    if not ours or any(each._training not in (None, TrainCall.late) for each in ours):
        return train(*args, **kwargs)
    resume = args[0] if args else kwargs.get("resume_from_checkpoint")
    training = TrainCall(trainer)
    try:
        training.begin(resume)
        if resume is True and args:
            args = (training.resumed, *args[1:])
        elif resume is True:
            kwargs["resume_from_checkpoint"] = training.resumed
        done = train(*args, **kwargs)
    except BaseException as error:
        training.failed(error)
        raise
    else:
        training.finished()
        return done
    finally:
        training.close()


def _begin_late(trainer: Any, name: str) -> None:
    training = TrainCall.late = TrainCall(trainer)
    try:
        training.begin(None)
    except BaseException:
        training.close()
        raise
    trainer.callback_handler.callbacks.append(end := _LateEnd(training))
    training._at_the_end.callback(trainer.callback_handler.remove_callback, end)
    if training.rank == 0:
        arguments.named(LOGGER).warning(
            "%s came by add_callback, after transformers chose the checkpoint to resume from. In this training an "
            "incomplete checkpoint is not skipped, an evaluation that a preemption left out is not done, and an "
            "exception is not noticed. Give it to Trainer(callbacks=[...])",
            name,
        )
