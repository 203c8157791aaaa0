"""One call of `Trainer.train`, which our callbacks surround: transformers passes them neither the trainer nor the end.

Callbacks may come by `add_callback`, which calls no hook, and `on_train_begin` comes after the checkpoint is loaded. So
`Trainer.train` itself is wrapped, once, when the first callback is made; everything else is wrapped on the one trainer
from the begin of `train` to its end. What always holds: a trainer without such a callback trains as before; each
callback's `begin` is followed by one `end`, in the opposite order, after `finished` or `failed`; `end` is done
whatever the others raise; the checkpoint that a training resumes from is the same on all ranks, as rank 0 chooses it.

`Trainer` asks whether all steps are done only after a step, so a start from the checkpoint of the last step would train
one more, and save it: here it trains none. `Trainer` evaluates before it saves, and its checkpoints know nothing of
evaluations: a file in the checkpoint says that one was left out, and it is done where the training continues.

Does not cover: subclasses whose `train` is their own and calls no `super().train()` (such a training ends with an error
at its begin); an evaluation that was to be followed by a save under `save_strategy="best"`; the best model with
transformers 4.46, which decides on it only when it saves.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from holdfast.callbacks import callback_log
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
_FAILED = "!"


def refuse_untested() -> None:
    """Raises RuntimeError where transformers is older or newer than those that were tested."""
    version = tuple(int(part) for part in VERSION.split(".")[:2])
    if not TESTED[0] <= version <= TESTED[1]:
        first, last = (".".join(map(str, each)) for each in TESTED)
        raise RuntimeError(
            f"holdfast was tested with transformers {first} to {last}, and this is {VERSION}: install one of those "
            f"(pip install 'transformers=={last}.*'), or a holdfast that was tested with yours"
        )


class TrainCall:
    """Made on all ranks together."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rank = int(trainer.args.process_index)
        self.patches = Patches()
        self.side = SideGroup()
        self.checkpoints = WholeCheckpoints(trainer, self.side)
        self.resumed: Any = None
        """The checkpoint that the training resumes from; None from the start."""
        self.on_resume: list[Callable[[], None]] = []
        """Called when there is such a checkpoint."""

    @property
    def step(self) -> int:
        """Optimizer steps, of earlier starts as well."""
        return int(self.trainer.state.global_step)

    def begin(self, resume: Any) -> None:
        """`resume` is `train`'s argument: True is the last complete checkpoint, or none. Collective."""
        if resume is True:
            resume = self._last_complete()
        self.resumed = resume or None
        self.checkpoints.watch(self.patches)
        self._train_no_more()
        if self.resumed is not None:
            for each in self.on_resume:
                each()

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
        """Evaluate, if the checkpoint that the training resumes from says so. Called by all ranks."""
        if self.resumed is None or not self.evaluation_is_due():
            return
        metrics = self.trainer._evaluate(None, None)
        if hasattr(self.trainer, "_determine_best_metric"):
            self.trainer._determine_best_metric(metrics=metrics, trial=None)

    def close(self) -> None:
        """May be called twice."""
        self.patches.undo()
        self.side.close()

    def _last_complete(self) -> str:
        folder = self.trainer.args.output_dir
        chosen = ""
        if self.rank == 0:
            try:
                chosen = choose(folder)
            except OSError as error:
                chosen = f"{_FAILED}checkpoints cannot be looked for in {folder}: {error.strerror or error}"
        try:
            told = self.side.broadcast_text(chosen, patience=self.side.setup_timeout)
        except CollectiveFailed as why:
            raise RuntimeError(
                f"no rank knows which checkpoint in {folder} to go on from: rank 0 could not tell the others ({why})"
            ) from why
        if told.startswith(_FAILED):
            raise OSError(told.removeprefix(_FAILED))
        return told

    def _train_no_more(self) -> None:
        """Where all steps are done. Does nothing where this transformers has no method for an epoch."""
        trainer = self.trainer
        log = callback_log.named("holdfast.integrations.transformers")

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
    _training: TrainCall | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        """The first one of a process wraps `Trainer.train`, for which there is no hook; importing this does not."""
        if not hasattr(Trainer.train, "holdfast_surrounds"):
            _wrap(Trainer)
        return super().__new__(cls)

    def begin(self, training: TrainCall) -> None:
        """`train` was called. May raise."""

    def finished(self, training: TrainCall) -> None:
        """`train` has come to its end. Raises nothing."""

    def failed(self, training: TrainCall, error: BaseException) -> None:
        """An exception ends `train`: a failure, or a clean stop like `sys.exit(0)`. Raises nothing."""

    def end(self, training: TrainCall) -> None:
        """Give everything back. Raises nothing."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """States are restored; the first step comes. Raises RuntimeError if `begin` was not called."""
        if self._training is None:
            raise RuntimeError(
                f"{type(self).__name__} was not told that the training begins: this trainer's class has a `train` of "
                "its own, which does not call super().train()"
            )

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they surround nothing yet."""
        return {**vars(self), "_training": None}


def surround(trainer: Any, train: Any, resume: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `train` of this trainer, with what its callbacks do around it."""
    ours = [each for each in trainer.callback_handler.callbacks if isinstance(each, SurroundingCallback)]
    if not ours or any(each._training is not None for each in ours):
        return train(trainer, resume, *args, **kwargs)
    refuse_untested()
    with ExitStack() as at_the_end:
        for part in [part for each in ours for part in each.parts]:
            if not any(isinstance(each, type(part)) for each in ours):
                ours.append(part)
                trainer.callback_handler.callbacks.append(part)
                at_the_end.callback(trainer.callback_handler.remove_callback, part)
        training = TrainCall(trainer)
        at_the_end.callback(training.close)
        begun = list[SurroundingCallback]()
        try:
            for each in ours:
                at_the_end.callback(_end, each, training)
                each._training = training
                each.begin(training)
                begun.append(each)
            training.begin(resume)
            done = train(trainer, training.resumed, *args, **kwargs)
        except BaseException as error:
            for each in reversed(begun):
                each.failed(training, error)
            raise
        for each in begun:
            each.finished(training)
        return done


def _end(callback: SurroundingCallback, training: TrainCall) -> None:
    callback._training = None
    callback.end(training)


def _wrap(kind: Any) -> None:
    original = kind.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        return surround(self, original, resume_from_checkpoint, args, kwargs)

    train.holdfast_surrounds = True  # type: ignore[attr-defined]
    kind.train = train
