"""From outside of a job: submit one for a run directory, and how the last chain there stands by what Slurm knows.

What always holds: nothing is submitted where another job or a `holdfast autoresume` trains, or where the training is
finished; a job that cannot have the claim (`attempt`) is taken back.

Does not cover: filesystems without locks; a warning reports that.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress

from ... import __version__
from ...autoresume.ledger import Attempt, Ledger
from ...autoresume.run_dir import (
    SLURM_SCRIPT,
    LedgerFile,
    Now,
    Standing,
    check_flag,
    flag_exists,
    hold,
    say,
    whose_flag,
)
from ...fault_tolerance.errors import ConfigError
from . import job as slurm
from .attempt import claim, claim_looked_at, refuse_others
from .job import Job, SlurmError
from .script import Plan, batch_script

NO_REQUEUE = "SBATCH_NO_REQUEUE"
ANSWER = 10.0
"""Seconds for Slurm."""

NEXT = "holdfast slurm with the same run directory carries on"


def submit(plan: Plan) -> str:
    """Write the batch script into the run directory and submit it; the job's number.

    Raises `Refused` where another job trains there, `Taken` where a `holdfast autoresume` does,
    `ConfigError`, `SlurmError`.
    """
    text = batch_script(plan, __version__)
    if NO_REQUEUE in os.environ:  # it would outdo the script's --requeue
        raise ConfigError(f"{NO_REQUEUE} is set, and the job has to be requeued. Unset it for this command")
    with claim_looked_at(plan.run_dir):
        refuse_others(plan.run_dir)
        with hold(plan.run_dir):
            pass
        _refuse_finished(plan)
        path = os.path.join(plan.run_dir, SLURM_SCRIPT)
        try:
            with open(path, "wb") as file:
                file.write(os.fsencode(text))  # a path may have any bytes
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        job = slurm.submit(text)
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
        claim(plan.run_dir, job)
    except OSError as error:
        with suppress(SlurmError):
            slurm.cancel(job)
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}; job {job} is cancelled"
        ) from None


def _refuse_finished(plan: Plan) -> None:
    ledger = LedgerFile(plan.run_dir).read()
    found = whose_flag(ledger, plan.flag, there=flag_exists(plan.flag))
    if found in (Standing.OURS, Standing.NO_MORE):
        raise ConfigError(
            f"{plan.flag} is there: {found.value}. Nothing is submitted; to train on, remove it"
        )
    check_flag(plan.flag)


def slurm_says(ledger: Ledger) -> Now | None:
    """How the last chain stands; None where no job keeps it, or its end is known."""
    chain = ledger.chain
    if chain is None or chain.ended or not chain.job:
        return None
    try:
        return standing(chain.job, slurm.job(chain.job, ANSWER), ledger.open_attempt)
    except SlurmError as error:
        return Now("not known", f"the end of job {chain.job} is not in the ledger, and: {error}", "not known")


def standing(number: str, job: Job, attempt: Attempt | None) -> Now:
    """The same, from what Slurm knows of the job."""
    if job.alive:
        reason = f", {job.reason}" if job.reason else ""
        runs = job.state != "PENDING" and attempt is not None and attempt.job == f"{number}.{job.restarts}"
        return Now("continues", f"job {number} is {job.state}{reason}", "runs" if runs else "over")
    if job.state == "CANCELLED":
        return Now(
            "cancelled", f"job {number} was cancelled before it could note its end; {NEXT}", "cancelled"
        )
    how = f"has ended ({job.state})" if job.state else "is not known to Slurm any more"
    return Now("over", f"job {number} {how}, and has noted no end; {NEXT}", "over")
