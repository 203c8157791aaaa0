"""Attempts and decisions in sentences, for the log, the ledger and the table. Pure.

What always holds: each is one line without anything that a terminal acts on, and says who, what, how we know.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..visible import escaped
from .ending import Kind
from .ledger import Attempt

_VERB = {
    Kind.FINISHED: "finished the training",
    Kind.PREEMPTED: "was preempted",
    Kind.TIME_LIMIT: "ran into its time limit",
    Kind.ENDED: "ended",
    Kind.FAILED: "failed",
    Kind.NODE_LOST: "lost a node",
    Kind.REFUSED: "was refused",
    Kind.SHUT_DOWN: "shut the job down",
    Kind.CANCELLED: "was cancelled",
    Kind.LOST: "ended unseen",
}


def attempt_ended(attempt: Attempt) -> str:
    """`attempt 3 failed after 12 s: rank 1 (node gpu-7): RuntimeError: …`."""
    if attempt.kind is None:
        return f"attempt {attempt.number} runs"
    after = "" if attempt.seconds is None else f" after {duration(attempt.seconds)}"
    return f"attempt {attempt.number} {_VERB[attempt.kind]}{after}: {cause(attempt)}"


def cause(attempt: Attempt) -> str:
    """Who, if anybody, and why: `rank 1 (node gpu-7): RuntimeError: …`."""
    where = f"node {attempt.node}" if attempt.node else ""
    who = f"rank {attempt.rank}" + (f" ({where})" if where else "") if attempt.rank is not None else where
    why = attempt.why or "no reason is known"
    return escaped(f"{who}: {why}" if who and who not in why else why)


def over(last: Attempt, state: str) -> str:
    """Why a chain whose last attempt decided it is over."""
    return f"{state}: {attempt_ended(last)}"


def gave_up(failures: Sequence[Attempt]) -> str:
    """Names the cause of the last failure, and how many like it or unlike it were before."""
    last, count = failures[-1], len(failures)
    if count == 1:
        return f"gave up after a failure: {attempt_ended(last)}"
    earlier = list(dict.fromkeys(cause(each) for each in failures[:-1] if cause(each) != cause(last)))
    before = f"; before that: {'; '.join(earlier[-2:])}" if earlier else ""
    return (
        f"gave up after {count} failures in a row without progress, the last: {attempt_ended(last)}{before}"
    )


def got_nowhere(idle: Sequence[Attempt]) -> str:
    """Clean ends that go on for ever, and what is probably missing."""
    last = idle[-1]
    many = f"{len(idle)} attempts in a row" if len(idle) > 1 else "an attempt"
    what = f"gave up after {many} without failure that got nowhere, the last: {attempt_ended(last)}"
    if any(each.kind is Kind.TIME_LIMIT for each in idle):
        return f"{what}. Is the time limit shorter than the way to the next checkpoint?"
    if all(each.kind is Kind.PREEMPTED for each in idle):
        return (
            f"{what}. Only exit codes tell of these preemptions: is the training ended before its next checkpoint, "
            "and by whom?"
        )
    return f"{what}. A program that has finished must create the file that FAULT_TOL_FINISHED_FLAG_FILE names"


def too_many(last: Attempt, limit: int) -> str:
    """The number of jobs is used up, and the training continues if somebody starts another chain."""
    many = f"{limit} attempts" if limit > 1 else "one attempt"
    return f"not finished after {many}, which is the limit (--max-jobs); {attempt_ended(last)}"


def goes_on(last: Attempt, spent: str) -> str:
    """What the last attempt did, what it has spent."""
    return attempt_ended(last) + (f". {spent}" if spent else "")


def duration(seconds: float) -> str:
    """`3.2 s`, `12 min`, `4 h 05 min`: as exact as a person needs it."""
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60):02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
