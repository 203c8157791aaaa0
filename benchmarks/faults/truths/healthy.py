"""What is no fault: nothing may be said of it, and nothing restarted."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.faults.kind import CLIENT, COUNTED, SHELL


@dataclass(frozen=True)
class Healthy:
    """A job that needs nobody's help."""

    name: str
    what: str
    phase: str
    layout: str = "2"
    variant: str = CLIENT
    workers: int = 0
    everyone: bool = False
    """Whether it happens on all ranks, or on one."""


HEALTHY = (
    Healthy("quiet", "Nothing happens, with two workers for the data.", "step", "4", workers=2),
    Healthy("slow_once", "A step takes 1.5 s of a limit of 3 s.", "step", "3"),
    Healthy("stopped_for_a_second", "A rank is stopped for 1 s.", "collective", "2"),
    Healthy("long_checkpoint", "A checkpoint takes 1.8 s.", "checkpoint", "2+2"),
    Healthy("collections", "The garbage collector runs over 400,000 objects.", "step", "2", everyone=True),
    Healthy("slow_data", "The data's worker takes 1.2 s.", "step", "2", workers=1),
    Healthy("slow_start", "A rank comes 2 s late to the others.", "init", "3"),
    Healthy("two_nodes", "Two nodes, one of them 1 s late in validation.", "validation", "2+2"),
    Healthy(
        "nothing_said", "No client, and a validation of 1.5 s.", "validation", "2", COUNTED, everyone=True
    ),
    Healthy("shell", "Below a shell, with a step of 1 s.", "step", "2", SHELL),
    Healthy("own_failure", "An exception that the program handles itself.", "step", "2"),
    Healthy("long_end", "A rank exports its model for 1.5 s at the end.", "shutdown", "3"),
)
