"""`--ft-same-failure-limit`: a job that fails with one exception at one step, again and again, is ended."""

from __future__ import annotations

import pytest

from holdfast.cli.main import main
from tests.launcher.conftest import Jobs

FAILS = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
steps, rank = {steps}, {rank}
for step in range(steps[CYCLE] + 1):
    client.heartbeat({told})
meet()
if RANK == rank: raise {error}
wait()
"""
BUG = 'IndexError(f"index {1000 + CYCLE} is out of range")'


def fails(steps: list[int], *, rank: str = "CYCLE % 2", told: str = "step", error: str = BUG) -> str:
    """A program whose rank `rank` raises `error` after so many steps in each cycle."""
    return FAILS.format(steps=steps, rank=rank, told=told, error=error)


def test_one_exception_at_one_step_ends_the_job_after_three_cycles(jobs: Jobs) -> None:
    """On whichever rank; its numbers do not count. The evidence is kept, and the decision can be replayed."""
    job = jobs(fails([23] * 9), "--max-restarts", "8")
    said = job.end(93)
    assert len(job.journal("restart")) == 2
    (line,) = (line for line in said.splitlines() if "the same failure 3 times in a row" in line)
    assert "IndexError: index # is out of range after step 23" in line and "--ft-same-failure-limit" in line
    assert "no restart left" not in said
    assert [each["exit_code"] for each in job.journal("run_end")] == [93]
    assert main(["replay", str(job.run_dir)]) == 0


def test_the_limit_and_the_exit_code_can_be_set(jobs: Jobs) -> None:
    job = jobs(
        fails([23] * 9),
        *("--max-restarts", "8", "--ft-same-failure-limit", "2", "--ft-no-restart-exit-code", "42"),
    )
    job.end(42)
    assert len(job.journal("restart")) == 1


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        (fails([5, 6, 7, 8]), ()),
        (fails([5] * 4, told=""), ()),  # the step is unknown
        (fails([5] * 4, error="sys.exit(1)"), ()),
        (fails([5] * 4, error='(ValueError, KeyError)[CYCLE % 2]("x")'), ()),
        (fails([5] * 4), ("--ft-same-failure-limit", "0")),
    ],
    ids=["at other steps", "at an unknown step", "no exception", "other exceptions", "no limit"],
)
def test_other_failures_use_all_restarts(jobs: Jobs, program: str, flags: tuple[str, ...]) -> None:
    job = jobs(program, "--max-restarts", "3", *flags)
    job.end(1)
    assert len(job.journal("restart")) == 3
