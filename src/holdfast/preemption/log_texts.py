"""What a preempted training says, in the documented words. Pure."""

from __future__ import annotations

RECEIVED = "Received signal %d, initiating graceful stop"
DETECTED = "Preemption detected, saving checkpoint and exiting"
DEAF = (
    "PreemptionCallback: this training does not run in the main thread, where Python allows no signal "
    "handlers: it stops when ft_launcher or another rank says so, and not for a signal to this process"
)
ASKED_NOBODY = (
    "PreemptionCallback: the ranks could not ask each other in setup (has one ended?), and no signal is a "
    "notice in this training: %s"
)
NOTHING = "Preemption detected; nothing was trained in this start and there is nothing to save, exiting"


def complete(step: int, seconds: float, path: str) -> str:
    """The checkpoint is there."""
    return f"Preemption: the checkpoint of step {step} is complete after {seconds:.1f} s: {path}"


def failed(step: int, why: object) -> str:
    """It is not."""
    return (
        f"Preemption: the checkpoint of step {step} could not be saved: {why}; what was saved before is still there, "
        "and this process ends with the error"
    )
