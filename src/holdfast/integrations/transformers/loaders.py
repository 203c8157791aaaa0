"""The data loaders of a trainer: their workers stay when the signals come that ask the training to stop.

What always holds: whatever loader the trainer makes while it trains is asked to. Does not cover: what staying means
(`holdfast.preemption.loader_workers`); loaders that the user's own code makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.preemption.loader_workers import StayingWorkers

from .train_call import TrainCall

_MAKERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")


def watch(training: TrainCall, workers: StayingWorkers) -> None:
    """From now until the training is over."""

    def made(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loader = original(*args, **kwargs)
        workers.of(getattr(loader, "base_dataloader", loader))  # accelerate's have torch's within
        return loader

    for name in _MAKERS:
        training.patches.wrap(training.trainer, name, made)
