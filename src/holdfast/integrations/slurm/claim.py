"""Which job trains in a run directory: submitted once, claimed in a small file that outlives the runs of the job.

What always holds: two jobs never both have the claim, nor a job and a `holdfast autoresume`. It is looked at and taken
under a lock that is held for moments, and it counts as long as Slurm knows its job as pending or running. Jobs look for
a keeper (`autoresume.lock`) under that lock, and keepers, which hold theirs by then, for a claim: the second of
them sees the first.

Does not cover: filesystems without locks; there the ledger is all there is, and a warning reports it.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ... import __version__
from ...autoresume import flag, lock
from ...autoresume.ledger import Attempt, Ledger
from ...autoresume.ledger_file import LedgerFile, say
from ...autoresume.status import Now
from ...checkpoints.atomic import whole_file
from ...fault_tolerance.errors import ConfigError, HoldfastError
from . import commands
from .facts import Job
from .script import Plan, batch_script

NAME = "slurm-job.json"
LOCK = ".slurm.lock"
SCRIPT = "job.sbatch"
NO_REQUEUE = "SBATCH_NO_REQUEUE"
PATIENCE = 60.0
"""Seconds to wait for a process that reads the claim just now."""
ANSWER = 10.0
"""Seconds for Slurm."""

NEXT = "holdfast slurm with the same run directory carries on"


class Refused(HoldfastError):
    """Another job trains there. The message is one line: which, and what to do."""


@contextmanager
def looked_at(run_dir: str) -> Iterator[None]:
    """No other process takes the claim inside this block."""
    until = time.monotonic() + PATIENCE
    held = None
    while held is None:
        try:
            held = lock.take(run_dir, LOCK)
        except lock.Held:
            if time.monotonic() > until:
                raise Refused(f"another process has held {run_dir}/{LOCK} for {PATIENCE:g} s") from None
            time.sleep(0.1)
        except lock.Unlockable as error:
            say(f"warning: no lock ({error}): make sure that no other job trains in {run_dir}")
            break
    try:
        yield
    finally:
        if held is not None:
            held.close()


def read(run_dir: str) -> str:
    """The job that has the claim; empty where none does."""
    try:
        with open(os.path.join(run_dir, NAME)) as file:
            told = json.load(file)
        return str(told["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def refuse_others(run_dir: str, mine: str = "") -> None:
    """Raises `Refused` if another job than `mine` has the claim and lives, or it is unknown whether it does."""
    owner = read(run_dir)
    if not owner or owner == mine:
        return
    try:
        job = commands.job(owner)
    except commands.SlurmError as error:
        raise Refused(
            f"job {owner} has trained in {run_dir}, and whether it still does is not known ({error}). If it is over: "
            f"rm {shlex.quote(os.path.join(run_dir, NAME))}"
        ) from None
    if job.alive:
        raise Refused(
            f"job {owner} trains in {run_dir} already ({job.state}). Wait for it, end it (scancel {owner}), or use "
            "another run directory"
        )


def refuse_jobs(run_dir: str) -> None:
    """For a `holdfast autoresume` that holds its lock: raises `Refused` where a job trains, or will."""
    # Who makes the lock's file after this sees that ours is held.
    if os.path.lexists(os.path.join(run_dir, LOCK)) or read(run_dir):
        with looked_at(run_dir):
            refuse_others(run_dir)


def write(run_dir: str, job: str) -> None:
    """Take the claim. Raises OSError with the file's name."""
    path = os.path.join(run_dir, NAME)
    try:
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps({"job": job}))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def keep(run_dir: str, job: str) -> None:
    """The claim for a job that is about to train. A disk that does not take it is warned of, and no reason not to."""
    if read(run_dir) == job:
        return
    try:
        write(run_dir, job)
    except OSError as error:
        say(
            f"warning: {error.filename} cannot be written: {error.strerror}. Make sure that no other job trains in "
            f"{run_dir}"
        )


def submit(plan: Plan) -> str:
    """Write the batch script into the run directory and submit it; the job's number.

    Raises `Refused` where another job trains there, `lock.Taken` where a `holdfast autoresume` does,
    `ConfigError`, `commands.SlurmError`.
    """
    text = batch_script(plan, __version__)
    if NO_REQUEUE in os.environ:  # it would outdo the script's --requeue
        raise ConfigError(f"{NO_REQUEUE} is set, and the job has to be requeued. Unset it for this command")
    with looked_at(plan.run_dir):
        refuse_others(plan.run_dir)
        with lock.hold(plan.run_dir):
            pass
        _refuse_finished(plan)
        path = os.path.join(plan.run_dir, SCRIPT)
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
        write(plan.run_dir, job)
    except OSError as error:
        with suppress(commands.SlurmError):
            commands.cancel(job)
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}; job {job} is cancelled"
        ) from None


def _refuse_finished(plan: Plan) -> None:
    ledger = LedgerFile(plan.run_dir).read()
    found = flag.standing(ledger, plan.flag, there=flag.exists(plan.flag))
    if found in (flag.Standing.OURS, flag.Standing.NO_MORE):
        raise ConfigError(
            f"{plan.flag} is there: {found.value}. Nothing is submitted; to train on, remove it"
        )
    flag.check(plan.flag)


def slurm_says(ledger: Ledger) -> Now | None:
    """How the last chain stands; None where no job keeps it, or its end is known."""
    chain = ledger.chain
    if chain is None or chain.ended or not chain.job:
        return None
    try:
        return standing(chain.job, commands.job(chain.job, ANSWER), ledger.open_attempt)
    except commands.SlurmError as error:
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
