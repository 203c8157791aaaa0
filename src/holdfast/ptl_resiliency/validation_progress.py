"""A checkpoint saved in the middle of a validation, or before one that is due: Lightning then does all of it again.

Saved in one of its hooks, a checkpoint says that the validation is over, and saved after the last batch before it, that
there is none: early stopping, best checkpoints and schedulers never see its result. Lightning goes back only to a
validation that was left within a step. What always holds: while such a checkpoint is saved, and only then, the
trainer's counters say that the first batch of the validation is under way.

Does not cover: a Lightning whose loops have other counters; the checkpoint is then as one of Lightning's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def validation_to_come(trainer: Any, *, begun: bool) -> Iterator[None]:
    """What is saved within has the validation still to come, if one is `begun`, or due after this training batch."""
    loop = getattr(trainer.fit_loop, "epoch_loop", None)
    try:
        kept = _kept(trainer, loop, begun)
    except AttributeError:  # another Lightning
        kept = []
    try:
        if kept:
            _at_first_batch(loop, begun)
        yield
    finally:
        for progress, state in kept:
            progress.load_state_dict(state)


def _kept(trainer: Any, loop: Any, begun: bool) -> list[tuple[Any, dict[str, Any]]]:
    """The counters that must be changed, and what they are; none if no validation is to come."""
    if not begun and not loop._should_check_val_fx(trainer.fit_loop._data_fetcher):
        return []
    return [(each, each.state_dict()) for each in (loop.batch_progress, loop.val_loop.batch_progress)]


def _at_first_batch(loop: Any, begun: bool) -> None:
    training, validation = loop.batch_progress, loop.val_loop.batch_progress
    if not begun:  # the hook that we are in is the last that the training batch has before the validation
        training.increment_completed()
    earlier = validation.total.ready - (validation.current.ready if begun else 0)
    for counters, done in ((validation.total, earlier), (validation.current, 0)):
        counters.ready = counters.started = done + 1
        counters.processed = counters.completed = done
    validation.is_last_batch = False
