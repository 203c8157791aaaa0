"""Hangs and crashes that need a GPU: time to detect, verdict with its place, end of the rank, and restart.

All faults belong to one job, each to a cycle of its own. If a job ends before its last fault, a new job starts with
the first fault that has not happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gpu_check import NOT_POSSIBLE, Check, Row, by_mode, is_dry, row
from .gpu_job import Job

CULPRIT = 1
DETECTED, ENDED = 0.1, 5.0  # seconds after the timeout, and after the verdict
LAUNCH_TIMEOUT = "crash: cudaErrorLaunchTimeout"


@dataclass(frozen=True)
class Fault:
    """`function` is in `programs/gpu_device.py` or `never_come`; `expected` are parts of the verdict's sentence."""

    row: str
    function: str
    expected: tuple[str, ...]
    crashes: bool = False


NEVER_REACHED = ("never reached", "all_reduce")
FAULTS = (
    Fault("hang: a kernel that never ends, in synchronize()", "hang_in_synchronize", ("synchronize",)),
    Fault("hang: a kernel that never ends, in .item()", "hang_in_item", ("wait_for_item",)),
    Fault("hang: a kernel that never ends, in a copy to the host", "hang_in_copy", ("wait_for_copy",)),
    Fault("hang: a rank that waits on the host", "wait_on_the_host", ("wait_on_the_host",)),
    Fault("hang: a collective that one rank never joins", "skip_the_collective", NEVER_REACHED),
    Fault("crash: device-side assert", "fail_an_assertion", ("device-side assert",), crashes=True),
    Fault("crash: illegal memory access", "access_illegally", ("illegal memory access",), crashes=True),
    Fault("crash: out of memory on the GPU", "allocate_too_much", ("CUDA out of memory",), crashes=True),
    # Last, because no rank takes a step in its cycle.
    Fault("hang: initialisation of NCCL whose peer never comes", "never_come", ("wait_on_the_host",)),
)


def run(folder: Path) -> Iterator[Row]:
    left = list(FAULTS)
    while left:
        with _start(folder, left) as job:
            stopped = None
            try:
                job.wait()
            except SystemExit as error:  # the time limit: faults that have happened are judged first
                stopped = error
            cycles = {record["cycle"] for record in job.journal("cycle_start")} | {0}
            happened = [fault for cycle, fault in enumerate(left) if cycle in cycles]
            for cycle, fault in enumerate(happened):
                yield (_judge_crash if fault.crashes else _judge_hang)(job, cycle, fault)
            if stopped:
                raise stopped
        del left[: len(happened)]
    why = "only GPUs that drive a display limit the time of a kernel"
    yield Row(LAUNCH_TIMEOUT, NOT_POSSIBLE, reason=why)


def _start(folder: Path, left: Sequence[Fault]) -> Job:
    timeouts = by_mode("setup:30,step:5", "setup:6,step:2")
    options = ("--ft-warm-start=on", f"--max-restarts={len(left)}", f"--ft-rank-section-timeouts={timeouts}")
    names = ",".join(fault.function for fault in left)
    arguments = ("--steps", "8", "--backend", "gloo", "--faults", names)
    return Job(folder, left[0].function, "gpu_train.py", *arguments, ranks=2, options=options)


def _judge_hang(job: Job, cycle: int, fault: Fault) -> Row:
    verdict = _find(job, "verdict", cycle)
    ends = [each for each in job.journal("rank_exit") if (each["cycle"], each["rank"]) == (cycle, CULPRIT)]
    if not verdict or not ends:
        return row(fault.row, False, f"no verdict or no exit of the rank in cycle {cycle}: {job.errors()}")
    late, ended = verdict["waited"] - verdict["limit"], ends[0]["mono"] - verdict["at"]
    right = verdict.get("culprit") == CULPRIT and all(part in verdict["sentence"] for part in fault.expected)
    in_time = is_dry() or (late <= DETECTED and ended <= ENDED)
    figures = {"detected_late_s": late, "ended_after_s": ended, "resumed_after_s": _resumed(job, cycle)}
    figures["verdict"] = "right" if right else "wrong"
    return _row(job, cycle, fault, right and in_time, verdict["sentence"], figures)


def _judge_crash(job: Job, cycle: int, fault: Fault) -> Row:
    incident = _find(job, "incident", cycle)
    if not incident:
        return row(fault.row, False, f"no incident in cycle {cycle}: {job.errors()}")
    right = incident["rank"] == CULPRIT and all(part in incident["sentence"] for part in fault.expected)
    figures = {"kind": incident["cause"], "resumed_after_s": _resumed(job, cycle)}
    return _row(job, cycle, fault, right, incident["sentence"], figures)


def _row(job: Job, cycle: int, fault: Fault, passed: bool, sentence: str, figures: dict[str, Any]) -> Row:
    """Passed only if the job restarted, too."""
    restarted = any(mark["kind"] == "first_step" and mark["cycle"] > cycle for mark in job.marks)
    reason = sentence if restarted else "the job did not restart"
    return row(fault.row, passed and restarted, reason, **figures)


def _find(job: Job, kind: str, cycle: int) -> dict[str, Any] | None:
    return next((record for record in job.journal(kind) if record["cycle"] == cycle), None)


def _resumed(job: Job, cycle: int) -> float | str:
    record = _find(job, "resume", cycle + 1)
    return record["seconds"] if record else "not measured"


CHECKS = [Check("faults", 190, [*(fault.row for fault in FAULTS), LAUNCH_TIMEOUT], run)]
