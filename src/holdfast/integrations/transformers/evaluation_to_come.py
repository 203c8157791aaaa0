"""An evaluation that was due when a training was preempted: it is done where the training continues.

`Trainer` evaluates before it saves, and its checkpoints know nothing of evaluations; one that is left out would be
missing for the best model, early stopping and the logs. So a file in the checkpoint says so. What always holds: the
training itself goes on as after the evaluation. Does not cover: a start that is not of a checkpoint (nothing is due
then); an evaluation that was to be followed by a save under `save_strategy="best"`; the best model with transformers
4.46, which decides on it only when it saves.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .train_call import TrainCall

NAME = "holdfast-evaluation-to-come.txt"


def leave_to_the_next_start(training: TrainCall) -> None:
    """The checkpoint that is saved next is one before its evaluation."""

    def note(place: str) -> None:
        with open(os.path.join(place, NAME), "w", encoding="utf-8") as file:
            file.write("The evaluation of this step comes when the training resumes from here.\n")

    training.checkpoints.within = note


def is_due(training: TrainCall) -> bool:
    """As rank 0 sees it: an evaluation that only some ranks begin would wait for the others.

    Raises CollectiveFailed.
    """
    own = os.path.exists(os.path.join(training.resumed, NAME))
    if training.side.failed:
        return own
    return training.side.broadcast([float(own)], patience=training.side.setup_timeout) == [1.0]


def catch_up(training: TrainCall) -> None:
    """Evaluate, if the checkpoint that the training resumes from says so. Called by all ranks."""
    if training.resumed is None or not is_due(training):
        return
    trainer = training.trainer
    metrics = trainer._evaluate(None, None)
    if hasattr(trainer, "_determine_best_metric"):
        trainer._determine_best_metric(metrics=metrics, trial=None)
