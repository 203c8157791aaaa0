"""A training that goes on from the checkpoint of its last step: there is nothing to train.

`Trainer` asks whether all steps are done only after a step, so such a start trains one more, and saves it: each start
of a job that was ended between its last checkpoint and its end would change the weights. What always holds: the rest
of `train` is done, as after a last step. Does not cover: trainings that a callback had stopped earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.callbacks import callback_log

if TYPE_CHECKING:
    from .train_call import TrainCall


def train_no_more(training: TrainCall) -> None:
    """Until the training's patches are undone. Does nothing where this transformers has no such method."""
    trainer = training.trainer
    log = callback_log.named("holdfast.integrations.transformers")

    def unless_done(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = trainer.state
        if not 0 < state.max_steps <= state.global_step:
            return original(*args, **kwargs)
        if training.rank == 0:
            log.info("all %d steps are done: there is nothing to train", state.max_steps)
        trainer.control.should_training_stop = True
        return None

    if hasattr(trainer, "_run_epoch"):
        training.patches.wrap(trainer, "_run_epoch", unless_done)
