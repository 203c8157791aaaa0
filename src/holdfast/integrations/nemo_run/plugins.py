"""The plugins of NeMo-Run: fault tolerance, preemption and W&B, the launcher that they set, and callbacks as configs.

NeMo-Run makes the command from the launcher; what it has no field for travels in the executor's environment, as
`PET_FT_…` variables of ft_launcher.

What always holds: a variable that the user has set in `executor.env_vars` stays, but for the exit code by which the job
script knows a preempted attempt; a callback of a type that the task has already is not added. The W&B key is in nothing
that is written here: Slurm passes the environment of who submits on to the job.

Does not cover: executors other than Slurm's, which have no job script to requeue; tasks whose trainer is not at
`task.trainer`; profiling with Nsys, which wraps the launcher and not the ranks. For W&B: a tunnel to another machine,
where the key has to be in the environment or in `~/.netrc`, and `sbatch --export=NONE`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGTERM, Signals
from typing import Any

import nemo_run
import yaml
from nemo_run.core.serialization.yaml import YamlSerializer

from holdfast.fault_tolerance import config_fields
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback, PreemptionCallback
from holdfast.ptl_resiliency.recipes import straggler_det_callback

from . import job_template

log = logging.getLogger(__name__)

NO_NSYS = "Nsys not supported with the FaultTolerancePlugin."

PREEMPTED = 75
"""As in templates/job.sh.j2."""
RENDEZVOUS = ("rdzv_backend", "rdzv_port", "rdzv_id")
"""What is kept of a launcher that the executor has already."""

_UNHURRIED = ("--kill-on-bad-exit=0", "--wait=0")
"""Options of srun. With NeMo-Run's own 1 and 60 it would end the other nodes' launchers, which may still save, when the
first one has left, or a minute later."""
WANDB_KEY = "WANDB_API_KEY"


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
            _whole(self, name, at_least=1)

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
        retries = _whole(self, "num_job_retries_on_failure", at_least=0)
        before = executor.launcher
        rendezvous = {name: getattr(before, name) for name in RENDEZVOUS if hasattr(before, name)}
        executor.launcher = FaultToleranceLauncher(
            **rendezvous,
            max_restarts=_whole(self, "num_in_job_restarts", at_least=0),
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


def _whole(of: Any, name: str, *, at_least: int) -> int:
    value = getattr(of, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    return value


def _says(arguments: list[str] | None, option: str) -> bool:
    return any(each == option or each.startswith(f"{option}=") for each in arguments or [])


@dataclass(kw_only=True)
class PreemptionPlugin(nemo_run.Plugin):  # type: ignore[misc]
    """Slurm sends `sig` to the job `preempt_time` seconds before its time limit; the training saves and ends.

    A `run.Script` stays as it is, with a warning: only the script itself can answer the signal.

    preempt_time: seconds before the time limit. Slurm may send it up to 60 s earlier.
    sig: the signal, or its number.
    callbacks: configs to put into the trainer in place of `PreemptionCallback(sig)`.
    """

    preempt_time: int = 60
    sig: int = SIGTERM
    callbacks: list[Any] | None = None

    def setup(self, task: Any, executor: Any) -> None:
        """Raises ValueError for a time or a signal that is none, or a task without a trainer."""
        sig = self._checked()
        if isinstance(task, nemo_run.Script):
            log.warning(
                "PreemptionPlugin changes nothing for a run.Script. Let the script handle the signal, and set "
                "executor.signal = '%d@%d'.",
                sig,
                self.preempt_time,
            )
            return
        if isinstance(executor, nemo_run.SlurmExecutor):
            executor.signal = f"{sig.value}@{self.preempt_time}"
        # The number: a plugin that comes later, such as WandbPlugin, may have to write the task as YAML.
        ours = [nemo_run.Config(PreemptionCallback, sig=sig.value)]
        add_callbacks(task, self.callbacks or ours, type(self).__name__)

    def _checked(self) -> Signals:
        _whole(self, "preempt_time", at_least=1)
        try:
            return Signals(self.sig)
        except ValueError:
            raise ValueError(f"sig must be a signal, like signal.SIGTERM, not {self.sig!r}") from None


@dataclass(kw_only=True)
class WandbPlugin(nemo_run.Plugin):  # type: ignore[misc]
    """The logger goes to `task.log.wandb` where the task has a `log`, as NeMo's recipes do, else to `trainer.logger`.

    Its `id` is made here, once for each submitted job, unless the logger has an `id` or a `version` already: each
    later start of the training continues the same run. A `run.Script` stays as it is, with a warning.

    name: the name of the run in Weights & Biases.
    logger_fn: called with `name=name`; returns a `run.Config` of `WandbLogger`.
    log_task_config: the task's configuration becomes the configuration of the run.
    """

    name: str
    logger_fn: Callable[..., Any]
    log_task_config: bool = True

    def setup(self, task: Any, executor: Any) -> None:
        """Raises ValueError for a task with neither a log nor a trainer, or a key in `executor.env_vars`."""
        if isinstance(task, nemo_run.Script):
            log.warning("WandbPlugin changes nothing for a run.Script: let the script make its logger.")
            return
        if WANDB_KEY in (getattr(executor, "env_vars", None) or {}):
            raise ValueError(
                f"{WANDB_KEY} in executor.env_vars would be written into the job script: set it in the environment"
            )
        if WANDB_KEY not in os.environ:
            log.warning("%s is not set: wandb needs it, or a ~/.netrc, where the training runs", WANDB_KEY)
        holder, field = self._place(task)
        config = self._config(task) if self.log_task_config else None
        logger = self.logger_fn(name=self.name)
        if not (getattr(logger, "id", None) or getattr(logger, "version", None)):
            logger.id = uuid.uuid4().hex[:8]
        if config is not None:
            logger.config = config
        setattr(holder, field, logger)

    def _config(self, task: Any) -> Any:
        try:
            return yaml.safe_load(YamlSerializer().serialize(task))
        except yaml.YAMLError as error:
            what = " ".join(str(error).split())
            log.warning(
                "The task's configuration is not logged to wandb, since YAML cannot hold it: %s", what
            )
            return None

    def _place(self, task: Any) -> tuple[Any, str]:
        if (where := getattr(task, "log", None)) is not None:
            return where, "wandb"
        if (where := getattr(task, "trainer", None)) is not None:
            return where, "logger"
        raise ValueError(f"WandbPlugin needs a task with a `log` or a `trainer`, and this has none: {task!r}")


def straggler_det_callback_config(
    straggler_report_time_interval: float = 300,
    stop_if_detected_straggler: bool = True,
    gpu_relative_perf_threshold: float = 0.7,
    gpu_individual_perf_threshold: float = 0.7,
    stop_on: str = "confirmed",
) -> Any:
    """`holdfast.ptl_resiliency.recipes.straggler_det_callback` as a `run.Config`, for a recipe's list of callbacks.

    Args:
        straggler_report_time_interval: seconds between reports; 0 is as often as possible.
        stop_if_detected_straggler: save a last checkpoint and end the training when there is a straggler.
        gpu_relative_perf_threshold: a score against the fastest rank below it makes a straggler.
        gpu_individual_perf_threshold: a score against the rank's own best below it makes a straggler.
        stop_on: "confirmed" or "scores": what ends the training, see `StragglerDetectionCallback`.
    """
    return nemo_run.Config(
        straggler_det_callback,
        straggler_report_time_interval=straggler_report_time_interval,
        stop_if_detected_straggler=stop_if_detected_straggler,
        gpu_relative_perf_threshold=gpu_relative_perf_threshold,
        gpu_individual_perf_threshold=gpu_individual_perf_threshold,
        stop_on=stop_on,
    )


def add_callbacks(task: Any, callbacks: list[Any], who: str) -> None:
    """Put these configs into the trainer of a `run.Partial`; a list that is None becomes one.

    Raises ValueError, which names the plugin `who`, for a task without a trainer.
    """
    trainer = getattr(task, "trainer", None)
    if trainer is None:
        raise ValueError(
            f"{who} adds a Lightning callback to the task's `trainer`, and this task has none: {task!r}"
        )
    present = list(getattr(trainer, "callbacks", None) or [])
    types = {kind for each in present if (kind := _type(each)) is not None}
    trainer.callbacks = [*present, *(each for each in callbacks if _type(each) not in types)]


def _type(callback: Any) -> Any:
    return getattr(callback, "__fn_or_cls__", None) or type(callback)
