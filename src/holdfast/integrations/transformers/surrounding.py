"""Callbacks that surround `Trainer.train`: transformers passes callbacks neither the trainer nor the end of a training.

So `Trainer.train` itself is wrapped, once, when the first callback is made. What always holds: a trainer without such a
callback trains as before; each callback's `begin` is followed by one `end`, in the opposite order, after `finished` or
`failed`; what `end` does is done whatever the others raise. A `Trainer` that is given callbacks later
(`add_callback`) is like any other. Does not cover: subclasses whose `train` is their own and calls no
`super().train()`; such a training ends with an error at its begin.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .train_call import TrainCall

if TYPE_CHECKING:
    # transformers is not installed where types are checked; the hooks that are used are checked by running them.
    class TrainerCallback:
        """A callback of transformers."""

    Trainer: Any = None
else:
    from transformers import Trainer, TrainerCallback


class SurroundingCallback(TrainerCallback):
    """Subclasses do their work between `begin` and `end`; all ranks call these together."""

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
    with ExitStack() as at_the_end:
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
