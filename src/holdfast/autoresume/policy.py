"""The retry policy: after an attempt, one more or not? Which nodes are to be left out of it? Pure.

`holdfast autoresume`, `holdfast slurm` and the job script of NeMo-Run decide by it. What spends the budget is a *row of
failures*: attempts that failed, or lost a node, one after the other. The row is over when the training got on:

- where the program reports its steps: an attempt resumed at a later step than all before it;
- where it does not: an attempt that ended without failing ran longer than each failed one of the row.

What always holds: attempts without progress do not continue without end, whatever their exit codes are: failures end
the chain after `max_failures` in a row, the same failure after --ft-same-failure-limit restart cycles in a row, clean
ends without the finished flag, and time limits between which no step was won, after `max_idle` in a row.

Does not cover: preemptions that the scheduler or the journal reports. They may follow each other forever: that is
the scheduler's decision, and `max_jobs` is the limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ..visible import escaped, without_numbers
from .ledger import Attempt, Chain
from .outcome import INTERRUPTED_CODE, SHUT_DOWN_CODE, Kind

MAX_FAILURES = 3
MAX_IDLE = 3
"""Clean ends in a row that got nowhere: a program that is done and makes no flag ends like this forever."""

LONG_ENOUGH = 300.0
"""Seconds after which a clean end counts as having got somewhere, where the program tells no steps."""

QUICK = 60.0
"""Seconds: an attempt that ended sooner is not followed by the next at once."""

LONGEST_WAIT = 300.0

FAILURES = frozenset({Kind.FAILED, Kind.NODE_LOST, Kind.REFUSED})
GAVE_UP_CODE = 1


class State(str, Enum):
    """How a chain ended. The values stand in the ledger."""

    GOES_ON = ""
    FINISHED = "finished"
    GAVE_UP = "gave up"
    """Too many failures in a row, or clean ends that got nowhere."""
    CANCELLED = "cancelled"
    SHUT_DOWN = "shut down"
    """A rank requested the end of the whole job, or training again cannot help (exit code 93)."""
    TOO_MANY_JOBS = "too many jobs"
    """`max_jobs` attempts were made; the training is not finished, and another chain may carry it on."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Limits:
    """What a chain may spend."""

    max_failures: int = MAX_FAILURES
    """Failures in a row after which it gives up, at least 1."""
    max_jobs: int | None = None
    """Attempts of one start of the tool, failed or not; None for any number."""
    max_idle: int = MAX_IDLE
    """Clean ends in a row that got nowhere after which it gives up, at least 1."""
    first_wait: float = 5.0
    """Seconds before the attempt that follows a quick failure; twice as long after each further one. 0: never wait."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a chain's attempts."""

    state: State
    why: str
    """One line for people: what was decided, and why."""
    wait: float = 0.0
    """Seconds until the next attempt, where there is one."""
    exit_code: int = 0
    """Of the whole chain; only where it is over, and 0 only if finished."""

    @property
    def goes_on(self) -> bool:
        """One more attempt is to follow."""
        return self.state is State.GOES_ON


def decide(chain: Chain, limits: Limits, before: int = 0) -> Decision:
    """What follows the last attempt of the chain, which has ended; a chain without attempts continues.

    `before`: so many of its attempts are those of a keeper that was killed. They count for the rows, but the
    process that continues the chain was asked to try, and makes one at least.
    """
    attempts = chain.attempts
    if not attempts:
        return Decision(State.GOES_ON, "the first attempt follows")
    last, own = attempts[-1], attempts[before:]
    if last.kind in _FINAL:
        state, code = _FINAL[last.kind]
        return Decision(state, f"{state}: {attempt_ended(last)}", exit_code=code)
    failures, idle = failures_in_a_row(attempts), idle_in_a_row(attempts)
    if own and 0 < last.same_failure_limit <= (same := same_failures_in_a_row(attempts)):
        why = (
            f"gave up: the same failure {same} times in a row: {last.failure}. Repair the program or its data"
        )
        return Decision(State.GAVE_UP, escaped(why), exit_code=GAVE_UP_CODE)
    if own and last.kind in FAILURES and len(failures) >= limits.max_failures:
        why = _gave_up_text(failures) + escaped(_suspect_checkpoint(attempts))
        return Decision(State.GAVE_UP, why, exit_code=GAVE_UP_CODE)
    if own and last.kind is not Kind.LOST and len(idle) >= limits.max_idle:
        return Decision(State.GAVE_UP, _got_nowhere_text(idle), exit_code=GAVE_UP_CODE)
    if limits.max_jobs is not None and len(own) >= limits.max_jobs:
        many = f"{limits.max_jobs} attempts" if limits.max_jobs > 1 else "one attempt"
        why = f"not finished after {many}, which is the limit (--max-jobs); {attempt_ended(last)}"
        return Decision(State.TOO_MANY_JOBS, why, exit_code=GAVE_UP_CODE)
    spent = ""
    if last.kind in FAILURES:
        spent = f". Failure {len(failures)} of {limits.max_failures} in a row"
    elif idle and last.kind is not Kind.LOST:
        spent = f". Clean end {len(idle)} of {limits.max_idle} in a row that may have got nowhere"
    why = attempt_ended(last) + spent + escaped(_suspect_checkpoint(attempts))
    return Decision(State.GOES_ON, why, wait=_wait(attempts, limits))


_FINAL = {
    Kind.FINISHED: (State.FINISHED, 0),
    Kind.SHUT_DOWN: (State.SHUT_DOWN, SHUT_DOWN_CODE),
    Kind.CANCELLED: (State.CANCELLED, INTERRUPTED_CODE),
    Kind.REFUSED: (State.GAVE_UP, GAVE_UP_CODE),
}


def _suspect_checkpoint(attempts: Sequence[Attempt]) -> str:
    """A sentence where the last attempt and one before failed at the same checkpoint. Nothing is deleted."""
    if not attempts[-1].checkpoint:
        return ""
    # Here, as it takes a third of the start of `holdfast autoresume`.
    from ..incidents.suspicions import Failure, suspicions

    history = [
        Failure(
            "exit", checkpoint=each.checkpoint, took_steps=each.took_steps, attempt=each.number, at=each.began
        )
        for each in attempts
        if each.kind in FAILURES or each.took_steps
    ]
    found = suspicions(history, attempts[-1].began).checkpoints
    own = [each.facts for each in found if each.what == attempts[-1].checkpoint]
    return "".join(f". The checkpoint is suspect: {facts}. Choose another one by hand" for facts in own)


def failures_in_a_row(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The failed attempts since the training last got on, the oldest first."""
    row: list[Attempt] = []
    for attempt, further in _with_progress(attempts):
        if further:
            row = []
        if attempt.kind in FAILURES:
            row.append(attempt)
        elif attempt.resumed_step is None and _outlived(attempt, row):
            row = []
    return row


def same_failures_in_a_row(attempts: Sequence[Attempt]) -> int:
    """Restart cycles in a row with the failure of the last attempt, in all of the latest attempts that had it."""
    total = 0
    for attempt in reversed(attempts):
        if attempt.kind not in FAILURES or not attempt.failure or attempt.failure != attempts[-1].failure:
            break
        total += attempt.same_failures
        if not attempt.only_same:
            break
    return total


def idle_in_a_row(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The latest attempts, as long as they ended cleanly, without the finished flag, and got nowhere."""
    row: list[Attempt] = []
    for attempt, further in _with_progress(attempts):
        if attempt.kind is Kind.LOST:
            continue
        if further or not _may_be_idle(attempt):
            row = []
        if _may_be_idle(attempt):
            row.append(attempt)
    return row


def nodes_to_exclude(attempts: Iterable[Attempt], *, after: int = 2) -> tuple[str, ...]:
    """Nodes that were the first to fail in at least `after` attempts, and those that were suspected in the last one,
    the worst first.

    A failure that looks the same on several nodes (but for numbers in its text) is the program's, and counts for none.
    """
    attempts = tuple(attempts)
    failed = [attempt for attempt in attempts if attempt.kind in FAILURES and attempt.node]
    where: dict[str, set[str]] = defaultdict(set)
    for attempt in failed:
        if attempt.kind is not Kind.NODE_LOST:
            where[without_numbers(attempt.why)].add(attempt.node)
    counts: dict[str, int] = defaultdict(int)
    for attempt in failed:
        if attempt.kind is Kind.NODE_LOST or len(where[without_numbers(attempt.why)]) == 1:
            counts[attempt.node] += 1
    bad = {node for node in counts if counts[node] >= after}
    bad.update(attempts[-1].suspected if attempts else ())
    return tuple(sorted(bad, key=lambda node: (-counts[node], node)))


def _with_progress(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, bool]]:
    """Each attempt, and whether it resumed at a later step than all before it."""
    reached: int | None = None
    for attempt in attempts:
        step = attempt.resumed_step
        yield attempt, reached is not None and step is not None and step > reached
        if step is not None:
            reached = step if reached is None else max(reached, step)


def _outlived(attempt: Attempt, row: Sequence[Attempt]) -> bool:
    """Whether an attempt that did not fail ran for longer than the failed ones."""
    if attempt.seconds is None or attempt.kind in (None, Kind.LOST) or _may_be_idle(attempt):
        return False
    return all(
        attempt.seconds > (LONG_ENOUGH if failed.seconds is None else failed.seconds) for failed in row
    )


def _may_be_idle(attempt: Attempt) -> bool:
    """A clean end that may have got nowhere: only the next attempt's step can show the contrary."""
    by_itself = attempt.kind is Kind.ENDED or (attempt.kind is Kind.PREEMPTED and not attempt.witnessed)
    if attempt.resumed_step is not None:
        return by_itself or attempt.kind is Kind.TIME_LIMIT
    return by_itself and (attempt.seconds is None or attempt.seconds < LONG_ENOUGH)


def _wait(attempts: Sequence[Attempt], limits: Limits) -> float:
    """Seconds before the next attempt: more after each further one that ended quickly."""
    quick = 0
    for attempt in reversed(attempts):
        if attempt.kind is Kind.LOST or attempt.seconds is None or attempt.seconds >= QUICK:
            break
        quick += 1
    return min(LONGEST_WAIT, limits.first_wait * 2.0 ** min(quick - 1, 30)) if quick else 0.0


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


def _gave_up_text(failures: Sequence[Attempt]) -> str:
    """Names the cause of the last failure, and how many like it or unlike it were before."""
    last, count = failures[-1], len(failures)
    if count == 1:
        return f"gave up after a failure: {attempt_ended(last)}"
    earlier = list(dict.fromkeys(cause(each) for each in failures[:-1] if cause(each) != cause(last)))
    before = f"; before that: {'; '.join(earlier[-2:])}" if earlier else ""
    return (
        f"gave up after {count} failures in a row without progress, the last: {attempt_ended(last)}{before}"
    )


def _got_nowhere_text(idle: Sequence[Attempt]) -> str:
    """Clean ends that repeat forever, and what is probably missing."""
    last = idle[-1]
    many = f"{len(idle)} attempts in a row" if len(idle) > 1 else "an attempt"
    what = f"gave up after {many} without failure that got nowhere, the last: {attempt_ended(last)}"
    if any(each.kind is Kind.TIME_LIMIT for each in idle):
        return f"{what}. Is the time limit shorter than the way to the next checkpoint?"
    if all(each.kind is Kind.PREEMPTED for each in idle):
        return (
            f"{what}. Only exit codes report these preemptions: is the training ended before its next checkpoint, "
            "and which program ends it?"
        )
    return f"{what}. A program that has finished must create the file that FAULT_TOL_FINISHED_FLAG_FILE names"


def duration(seconds: float) -> str:
    """`3.2 s`, `12 min`, `4 h 05 min`: as exact as a person needs it."""
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60):02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
