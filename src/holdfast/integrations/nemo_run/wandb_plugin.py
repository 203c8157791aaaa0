"""`WandbPlugin`: a task's logger for Weights & Biases, with one run for all restarts, requeues and attempts of a job.

What always holds: the key is in nothing that this writes, neither the job script nor NeMo-Run's files nor a journal.
Slurm passes the environment of who submits on to the job, and the ranks take `WANDB_API_KEY` from there.
Does not cover: a tunnel to another machine, where the key has to be in the environment or in `~/.netrc`; and
`sbatch --export=NONE`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nemo_run
import yaml
from nemo_run.core.serialization.yaml import YamlSerializer

__all__ = ["WandbPlugin"]

log = logging.getLogger(__name__)

KEY = "WANDB_API_KEY"


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
        if KEY in (getattr(executor, "env_vars", None) or {}):
            raise ValueError(
                f"{KEY} in executor.env_vars would be written into the job script: set it in the environment"
            )
        if KEY not in os.environ:
            log.warning("%s is not set: wandb needs it, or a ~/.netrc, where the training runs", KEY)
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
