"""Submitting a plan: once for a run directory, and not where the training is finished."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress

from ... import __version__
from ...autoresume import flag
from ...autoresume.ledger_file import LedgerFile
from ...autoresume.log import say
from ...fault_tolerance.errors import ConfigError
from . import claim, commands
from .plan import Plan
from .script import batch_script

NAME = "job.sbatch"
NO_REQUEUE = "SBATCH_NO_REQUEUE"


def submit(plan: Plan) -> str:
    """Write the batch script into the run directory and submit it; the job's number.

    Raises `claim.Refused` where another job trains there, `keeping.Taken` where a `holdfast autoresume` does,
    `ConfigError`, `commands.SlurmError`.
    """
    text = batch_script(plan, __version__)
    if NO_REQUEUE in os.environ:  # it would outdo the script's --requeue
        raise ConfigError(f"{NO_REQUEUE} is set, and the job has to be requeued. Unset it for this command")
    with claim.looked_at(plan.run_dir):
        claim.refuse_others(plan.run_dir)
        claim.refuse_keepers(plan.run_dir, _ledger(plan))
        _refuse_finished(plan)
        path = os.path.join(plan.run_dir, NAME)
        try:
            with open(path, "w") as file:
                file.write(text)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        job = commands.submit(text)
        _claim(plan, job)
    say(
        f"job {job} submitted; log {plan.run_dir}/slurm-{job}.log; it is requeued until the training is finished"
    )
    look = f"holdfast autoresume --status {shlex.quote(plan.run_dir)}"
    say(f"how attempts ended: {look}; to end it for good: scancel {job}")
    return job


def _claim(plan: Plan, job: str) -> None:
    """Without it a second submission would not be refused, so a job that cannot have it is taken back."""
    try:
        claim.write(plan.run_dir, job)
    except OSError as error:
        with suppress(commands.SlurmError):
            commands.cancel(job)
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}; job {job} is cancelled"
        ) from None


def _ledger(plan: Plan) -> LedgerFile:
    return LedgerFile(plan.run_dir, lambda text: say(f"warning: {text}"))


def _refuse_finished(plan: Plan) -> None:
    ledger = _ledger(plan).read()
    found = flag.standing(ledger, plan.flag, there=flag.exists(plan.flag))
    if found in (flag.Standing.OURS, flag.Standing.NO_MORE):
        raise ConfigError(
            f"{plan.flag} is there: {found.value}. Nothing is submitted; to train on, remove it"
        )
    flag.check(plan.flag)
