"""Is the training finished, so that no further job is needed? Decided from how a fit ended. Pure.

An auto-resume loop starts jobs until this is true, so it must become true in the end, and never too early. Does not
cover: programs whose end is none of these; they create the flag file themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ending:
    """How a fit ended. `max_steps` and `max_epochs` are -1 or None where there is no such limit."""

    iterations: int | None
    """Training batches of this fit; None where the framework always has a limit, and few of them mean nothing."""
    global_step: int = 0
    max_steps: int | None = -1
    epoch: int = 0
    """Epochs done."""
    max_epochs: int | None = -1
    asked_to_stop: bool = False
    """Somebody set `trainer.should_stop`."""
    in_mid_epoch: bool = False
    """The last batch was not the last one of its epoch."""
    early_stopping: bool = False
    """It was an EarlyStopping callback that asked."""
    failed: bool = False


def why_complete(end: Ending) -> str:
    """In which way the training is complete, for people; nothing when it is not."""
    if end.failed:
        return ""
    if _reached(end.global_step, end.max_steps):
        return f"max_steps={end.max_steps} reached"
    if _reached(end.epoch, end.max_epochs) and not (end.asked_to_stop and end.in_mid_epoch):
        # Lightning counts an epoch that was cut short as done.
        return f"max_epochs={end.max_epochs} reached"
    if end.asked_to_stop and end.early_stopping:
        return "early stopping"
    if end.iterations is not None and end.iterations <= 1:
        return f"nothing more to do: this job ended after {end.iterations} training iterations"
    return ""


def _reached(value: int, limit: int | None) -> bool:
    return limit is not None and 0 < limit <= value
