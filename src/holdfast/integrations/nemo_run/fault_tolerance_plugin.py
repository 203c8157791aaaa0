"""`FaultTolerancePlugin`: ft_launcher, jobs that follow one another, and the callback, for a task and its executor.

Limits that NeMo-Run's launcher has a field for go to its fields; all else goes into the executor's environment, as
`PET_FT_…` variables of ft_launcher. What always holds: a variable that the user has set in `executor.env_vars` stays,
but for the exit code that the job script knows a preempted attempt by.
Does not cover: executors other than Slurm's, which have no job script to requeue.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import nemo_run

from holdfast.fault_tolerance import config_fields
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

from .callback_configs import add_callbacks
from .launcher import NO_NSYS, FaultToleranceLauncher

__all__ = ["FaultTolerancePlugin"]

log = logging.getLogger(__name__)

PREEMPTED = 75
"""As in templates/job.sh.j2."""
RENDEZVOUS = ("rdzv_backend", "rdzv_port", "rdzv_id")
"""What is kept of a launcher that the executor has already."""


_UNHURRIED = ("--kill-on-bad-exit=0", "--wait=0")
"""Options of srun. With NeMo-Run's own 1 and 60 it would end the other nodes' launchers, which may still save, when the
first one has left, or a minute later."""


@dataclass(kw_only=True)
class FaultTolerancePlugin(nemo_run.Plugin):  # type: ignore[misc]
    """Hung and failed ranks are restarted in the job, failed jobs are submitted again, until the training is finished.

    A `run.Script` gets the launcher and the job script; its heartbeats and the finished flag are the script's own.

    num_in_job_restarts: successive restarts in a job; progress makes the count begin anew.
    num_job_retries_on_failure: successive failed jobs that are submitted again.
    initial_rank_heartbeat_timeout: seconds from a rank's start to its first heartbeat, until a limit is learned.
    rank_heartbeat_timeout: seconds between two heartbeats, until a limit is learned.
    rank_section_timeouts: seconds, or None, for sections; the trainer then gets `FaultToleranceSectionsCallback`,
        whose sections are setup, step and checkpointing.
    rank_out_of_section_timeout: seconds without an open section.
    max_unfinished_jobs: successive jobs that may end with 0 before the training is finished, or be preempted, or reach
        their time limit, without having got on.
    """

    num_in_job_restarts: int = 3
    num_job_retries_on_failure: int = 2
    initial_rank_heartbeat_timeout: float | None = 1800
    rank_heartbeat_timeout: float | None = 300
    rank_section_timeouts: dict[str, float | None] | None = None
    rank_out_of_section_timeout: float | None = None
    max_unfinished_jobs: int = 3

    def setup(self, task: Any, executor: Any) -> None:
        """Raises ValueError for an Nsys plugin beside it, a number that is none, or a task without a trainer."""
        if getattr(executor.launcher, "nsys_profile", False):
            raise ValueError(NO_NSYS)
        self._configure(executor)
        if isinstance(task, nemo_run.Script):
            log.warning(
                "FaultTolerancePlugin adds no callback to a run.Script: the script sends heartbeats itself, and makes "
                "$FAULT_TOL_FINISHED_FLAG_FILE when it is finished."
            )
            return
        add_callbacks(task, [self._callback(task, executor)], type(self).__name__)

    def _configure(self, executor: Any) -> None:
        """Raises ValueError."""
        retries = self._count("num_job_retries_on_failure", at_least=0)
        before = executor.launcher
        rendezvous = {name: getattr(before, name) for name in RENDEZVOUS if hasattr(before, name)}
        executor.launcher = FaultToleranceLauncher(
            **rendezvous,
            max_restarts=self._count("num_in_job_restarts", at_least=0),
            initial_rank_heartbeat_timeout=self.initial_rank_heartbeat_timeout,
            rank_heartbeat_timeout=self.rank_heartbeat_timeout,
            max_job_failures=retries + 1,
            max_unfinished_jobs=self.max_unfinished_jobs,
        )
        executor._launcher_setup = False  # of the launcher that was there; NeMo-Run sets up the new one
        executor.retries = retries
        own = {"PET_FT_PREEMPTED_EXIT_CODE": str(PREEMPTED)}
        executor.env_vars = {**self._environment(), **executor.env_vars, **own}
        if not isinstance(executor, nemo_run.SlurmExecutor):
            log.warning(
                "FaultTolerancePlugin is made for Slurm: %s has no job script that submits a job again. Ranks are "
                "restarted within the job",
                type(executor).__name__,
            )
            return
        said = executor.srun_args or []
        ours = [option for option in _UNHURRIED if not _says(said, option.partition("=")[0])]
        executor.srun_args = [*said, *ours]

    def _environment(self) -> dict[str, str]:
        """What NeMo-Run's launcher has no field for. Raises ValueError."""
        found = {
            "PET_FT_IGNORE_MISSING_CFG": "1",  # NeMo-Run names a file in FAULT_TOL_CFG_PATH, and never writes it
            "PET_FT_RESTARTS_RESET_ON_PROGRESS": "1",
        }
        for name in ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout"):
            if self._checked(name, config_fields.limit) is None:
                # NeMo-Run leaves the flag out then, and ft_launcher would take its default.
                found[f"PET_FT_{name.upper()}"] = "None"
        if (longest := self._checked("rank_out_of_section_timeout", config_fields.limit)) is not None:
            found["PET_FT_RANK_OUT_OF_SECTION_TIMEOUT"] = str(longest)
        if self.rank_section_timeouts is not None:
            limits = self._checked("rank_section_timeouts", config_fields.sections)
            found["PET_FT_RANK_SECTION_TIMEOUTS"] = ",".join(f"{name}:{limits[name]}" for name in limits)
        return found

    def _callback(self, task: Any, executor: Any) -> Any:
        kind = (
            FaultToleranceCallback if self.rank_section_timeouts is None else FaultToleranceSectionsCallback
        )
        folder = getattr(getattr(task, "log", None), "log_dir", None)
        chained = isinstance(executor, nemo_run.SlurmExecutor)  # elsewhere nothing names a flag file
        return nemo_run.Config(kind, autoresume=chained, calculate_timeouts=True, exp_dir=folder)

    def _checked(self, name: str, parse: Any) -> Any:
        try:
            return parse(getattr(self, name))
        except ValueError as error:
            raise ValueError(f"{name}={getattr(self, name)!r}: {error}") from None

    def _count(self, name: str, *, at_least: int) -> int:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
        return value


def _says(arguments: list[str] | None, option: str) -> bool:
    return any(each == option or each.startswith(f"{option}=") for each in arguments or [])
