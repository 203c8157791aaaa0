"""Hangs and crashes that only a GPU has: found in time, the culprit named with its place, ended, and training again.

All are faults of one job, each in a cycle of its own. Where a job does not get past one of them, another job begins
with the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .check import NOT_POSSIBLE, Check, Place, Row, row
from .job import Job

CULPRIT = 1
FOUND, ENDED = 0.1, 5.0  # seconds after the limit, and after the verdict
LAUNCH_TIMEOUT = "cudaErrorLaunchTimeout"


@dataclass(frozen=True)
class Fault:
    """`function` is of `programs/device.py` or `never_come`; `expected` is what the verdict must say."""

    row: str
    function: str
    expected: str


HANGS = (
    Fault("a kernel that never ends, under synchronize()", "hang_in_synchronize", "synchronize"),
    Fault("a kernel that never ends, under .item()", "hang_in_item", "hang_in_item"),
    Fault("a kernel that never ends, under a copy to the host", "hang_in_copy", "hang_in_copy"),
    Fault("a rank that waits on the host", "wait_on_the_host", "wait_on_the_host"),
    Fault("a collective that one rank never joins", "never_join_the_collective", "never_join_the_collective"),
)
CRASHES = (
    Fault("device-side assert", "fail_an_assertion", "device-side assert"),
    Fault("illegal memory access", "access_illegally", "illegal memory access"),
    Fault("out of memory on the GPU", "allocate_too_much", "CUDA out of memory"),
)
# Last: no rank takes a step in the cycle of this one.
MEETING = Fault("NCCL's initialisation, whose peer never comes", "never_come", "wait_on_the_host")
DRY_PLACES = {"hang_in_item": "synchronize", "hang_in_copy": "synchronize"}


def faults(place: Place) -> Iterator[Row]:
    """One row for each."""
    left = [*HANGS, *CRASHES, MEETING]
    while left:
        with _job(place, left) as job:
            stopped = None
            try:
                job.end()
            except SystemExit as error:  # the time limit: what has happened counts
                stopped = error
            cycles = {record["cycle"] for record in job.journal("cycle_start")}
            happened = [fault for cycle, fault in enumerate(left) if cycle in cycles or cycle == 0]
            for cycle, fault in enumerate(happened):
                yield _crash(job, cycle, fault) if fault in CRASHES else _hang(place, job, cycle, fault)
            if stopped:
                raise stopped
        del left[: len(happened)]
    yield Row(LAUNCH_TIMEOUT, NOT_POSSIBLE, said="only a GPU that drives a display limits a kernel's time")


def _job(place: Place, left: Sequence[Fault]) -> Job:
    limits = f"setup:{place.pick(20, 3)},step:{place.pick(5, 1)}"
    options = ("--ft-warm-start=on", f"--max-restarts={len(left)}", f"--ft-rank-section-timeouts={limits}")
    names = ",".join(fault.function for fault in left)
    arguments = ("--steps", "8", "--backend", "gloo", "--faults", names)
    return Job(place, left[0].function, "train.py", *arguments, ranks=2, options=options)


def _hang(place: Place, job: Job, cycle: int, fault: Fault) -> Row:
    """Found within 0.1 s of the limit, the right verdict with its place, ended within 5 s, trains again."""
    verdict = _of(job, "verdict", cycle)
    ends = [each for each in job.journal("rank_exit") if (each["cycle"], each["rank"]) == (cycle, CULPRIT)]
    if not verdict or not ends:
        return row(fault.row, False, f"no verdict or no end of the rank in cycle {cycle}; {_tail(job)}")
    late, ended = verdict["waited"] - verdict["limit"], ends[0]["mono"] - verdict["at"]
    expected = DRY_PLACES.get(fault.function, fault.expected) if place.dry else fault.expected
    right = verdict.get("culprit") == CULPRIT and expected in verdict["sentence"]
    again = _trained_again(job, cycle)
    return row(
        fault.row,
        right and late <= FOUND and ended <= ENDED and again,
        verdict["sentence"] if again else "the job did not train again",
        late_s=late,
        ended_s=ended,
        trains_again_s=_resumed(job, cycle),
        verdict="right" if right else "wrong",
    )


def _crash(job: Job, cycle: int, fault: Fault) -> Row:
    """Kind and culprit are named, with the message of CUDA."""
    incident = _of(job, "incident", cycle)
    if not incident:
        return row(fault.row, False, f"no incident of cycle {cycle}; {_tail(job)}")
    right = incident["rank"] == CULPRIT and fault.expected in incident["sentence"]
    again = _trained_again(job, cycle)
    return row(
        fault.row,
        right and again,
        incident["sentence"] if again else "the job did not train again",
        named_as=incident["cause"],
        trains_again_s=_resumed(job, cycle),
    )


def _of(job: Job, kind: str, cycle: int) -> dict[str, Any] | None:
    return next((record for record in job.journal(kind) if record["cycle"] == cycle), None)


def _trained_again(job: Job, cycle: int) -> bool:
    return any(mark["what"] == "first step" and mark["cycle"] > cycle for mark in job.seen)


def _resumed(job: Job, cycle: int) -> float | str:
    record = _of(job, "resume", cycle + 1)
    return record["seconds"] if record else "no"


def _tail(job: Job) -> str:
    return " | ".join(job.said().strip().splitlines()[-2:])


ROWS = [*(fault.row for fault in (*HANGS, *CRASHES, MEETING)), LAUNCH_TIMEOUT]
CHECKS = [Check("faults", "Hangs and crashes", 180, ROWS, faults)]
