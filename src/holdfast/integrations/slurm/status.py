"""How a chain stands whose end is not in the ledger and which a Slurm job keeps: Slurm is asked.

What always holds: the answer takes `ANSWER` seconds at most, and what Slurm does not report is shown as unknown.

Does not cover: jobs that Slurm has forgotten (`MinJobAge`): that they are over is all that can be said.
"""

from __future__ import annotations

from ...autoresume.ledger import Attempt, Ledger
from ...autoresume.table import Now
from . import commands
from .facts import Job

ANSWER = 10.0
"""Seconds for Slurm."""

NEXT = "holdfast slurm with the same run directory carries on"


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
        return Now("goes on", f"job {number} is {job.state}{reason}", "runs" if runs else "over")
    if job.state == "CANCELLED":
        return Now(
            "cancelled", f"job {number} was cancelled before it could note its end; {NEXT}", "cancelled"
        )
    how = f"has ended ({job.state})" if job.state else "is not known to Slurm any more"
    return Now("over", f"job {number} {how}, and has noted no end; {NEXT}", "over")
