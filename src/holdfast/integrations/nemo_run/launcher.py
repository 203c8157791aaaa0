"""`FaultToleranceLauncher`: NeMo-Run's launcher of that name, with a job script that knows how an attempt ended.

NeMo-Run makes the command from it, `ft_launcher` with the limits as flags; what it has no field for travels in the
environment (`fault_tolerance_plugin`). What always holds: the type is a subclass of `nemo_run.FaultTolerance`, so that
whatever NeMo-Run does for that it does for this.
Does not cover: profiling with Nsys; it wraps the launcher, not the ranks, and signals would end the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nemo_run

from . import job_template

__all__ = ["NO_NSYS", "FaultToleranceLauncher"]

NO_NSYS = "Nsys not supported with the FaultTolerancePlugin."


@dataclass(kw_only=True)
class FaultToleranceLauncher(nemo_run.FaultTolerance):  # type: ignore[misc]
    """`nemo_run.FaultTolerance` with Holdfast's job script.

    max_job_failures: successive failed jobs after which the chain gives up; a preempted job is none. At least 1.
    max_unfinished_jobs: successive jobs that end with 0, yet without the finished flag, or are preempted or end at
        their time limit, having got nowhere, after which it gives up.
    """

    max_job_failures: int = 3
    max_unfinished_jobs: int = 3

    def __post_init__(self) -> None:
        """Raises ValueError for a number below 1."""
        for name in ("max_job_failures", "max_unfinished_jobs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")

    def get_nsys_prefix(self, profile_dir: str) -> Any:
        """A plugin that came after ours may have asked for a profile. Raises ValueError then."""
        if self.nsys_profile:
            raise ValueError(NO_NSYS)
        return super().get_nsys_prefix(profile_dir)


job_template.serve(
    FaultToleranceLauncher,
    lambda launcher: {
        "max_job_failures": launcher.max_job_failures,
        "max_unfinished_jobs": launcher.max_unfinished_jobs,
    },
)
