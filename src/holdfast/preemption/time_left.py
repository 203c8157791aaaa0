"""How long a preempted job may still take, and whether that is enough for a checkpoint.

Two know an end: the launcher, which kills what is left after its --term-timeout, and Slurm (`SLURM_JOB_END_TIME`,
seconds since 1970). The last checkpoint of this process says how long one takes. Pure.

Does not cover: clusters that tell neither (Kubernetes' grace period is known to the launcher only if its
--term-timeout says it); a process that has saved nothing yet, of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the job is killed, and who says so."""

    seconds: float
    source: str


def time_left(
    launcher_deadline: float | None, environ: Mapping[str, str], *, monotonic: float, wall: float
) -> TimeLeft | None:
    """The nearest end that anybody knows; None if nobody does. The deadline is in seconds of `time.monotonic`."""
    known = []
    if launcher_deadline is not None:
        known.append(TimeLeft(launcher_deadline - monotonic, "ft_launcher's --term-timeout"))
    with suppress(KeyError, ValueError):
        known.append(TimeLeft(float(environ["SLURM_JOB_END_TIME"]) - wall, "Slurm's SLURM_JOB_END_TIME"))
    return min(known, key=lambda each: each.seconds, default=None)


def shortage(left: TimeLeft | None, last_save: float | None) -> str | None:
    """One line if the time left is less than the last save took; None if it is enough, or one is not known."""
    if left is None or last_save is None or left.seconds >= last_save:
        return None
    return (
        f"Preemption: {max(0.0, left.seconds):.1f} s are left ({left.source}), and the last checkpoint took "
        f"{last_save:.1f} s to save: this one may not be complete in time; it is tried all the same, and until it is "
        "complete the one before it stays"
    )
