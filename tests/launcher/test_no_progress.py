"""`checkpoint_iteration_file`: a job whose cycles save nothing new is ended, with a code of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from tests.launcher.conftest import Job, Jobs

SAVES = """
saved = {saved}[CYCLE] if RANK == 0 else None
if saved is not None:
    with open(os.environ["NOTES"] + "/latest", "w") as file:
        file.write(str(saved) + "\\n")
meet()
{end}
"""
"""`saved` has what rank 0 writes in each cycle; then all ranks end."""
ENDS = "sys.exit(5)"


class Trainings:
    """Jobs of which rank 0 writes the file, with 10 restarts."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def __call__(
        self, saved: list[Any], *flags: str, before: str | None = None, env: dict[str, str] | None = None
    ) -> Job:
        """A job; the file has `before` when it starts."""
        file = self._jobs.folder / "latest"
        if before is not None:
            file.write_text(before)
        text = SAVES.format(saved=saved, end=ENDS).replace('os.environ["NOTES"] + "/latest"', repr(str(file)))
        given = ["--ft-checkpoint-iteration-file", str(file), "--max-restarts", "10"]
        return self._jobs(text, *given, *flags, nproc=2, env=env)


@pytest.fixture
def trainings(jobs: Jobs) -> Trainings:
    return Trainings(jobs)


def restarts(job: Job) -> int:
    return len(job.journal("restart"))


def test_job_that_saves_nothing_new_ends_with_93(trainings: Trainings) -> None:
    job = trainings([10, 20, None, None, None])
    said = job.end(93)
    assert restarts(job) == 3, "cycles 0 and 1 made progress, 2 and 3 made none"
    (line,) = (line for line in said.splitlines() if "no progress in 2 " in line)
    assert "/latest" in line and "iteration 20" in line and "max_no_progress_cycles" in line
    assert [each["exit_code"] for each in job.journal("run_end")] == [93]
    assert "FAILED: rank" in said and "no restart left" not in said
    assert main(["replay", str(job.run_dir)]) == 0


def test_job_without_the_file_uses_all_restarts(jobs: Jobs) -> None:
    """The default of 2 cycles does not cut `--max-restarts` short."""
    job = jobs("meet()\nsys.exit(5)", "--max-restarts", "4")
    job.end(5)
    assert restarts(job) == 4


def test_job_that_never_saves_makes_no_progress(trainings: Trainings) -> None:
    job = trainings([None] * 9, "--ft-max-no-progress-cycles", "3", "--ft-no-restart-exit-code", "42")
    said = job.end(42)
    assert restarts(job) == 2 and "iteration 0" in said
    assert len([line for line in said.splitlines() if "No such file" in line]) == 1
    assert len(job.journal("iteration_unread")) == 1


def test_number_from_before_the_job_is_no_progress(trainings: Trainings) -> None:
    """The scheduler has started the job again: it resumes from iteration 500."""
    job = trainings([500, 500, 500], before="500")
    job.end(93)
    assert restarts(job) == 1


def test_too_few_iterations_are_no_progress(trainings: Trainings, tmp_path: Path) -> None:
    """Settings from YAML; a variable sets the code."""
    keys = "  min_progress_iterations: 100\n  max_no_progress_cycles: 3\n"
    (tmp_path / "ft.yaml").write_text(f"fault_tolerance:\n{keys}")
    env = {"PET_FT_NO_RESTART_EXIT_CODE": "44"}
    job = trainings([99, 199, 298, 397, 496, 500], "--ft-cfg-path", str(tmp_path / "ft.yaml"), env=env)
    job.end(44)
    assert restarts(job) == 4, "only cycle 1 made progress"


@pytest.mark.parametrize("cycles", ["0", "-1"])
def test_limit_of_zero_or_less_never_ends_a_job(trainings: Trainings, cycles: str) -> None:
    job = trainings([None] * 9, "--ft-max-no-progress-cycles", cycles, "--max-restarts", "3")
    job.end(5)
    assert restarts(job) == 3


@pytest.mark.parametrize("kind", ["fifo", "directory", "text"])
def test_file_without_a_number_ends_no_job(trainings: Trainings, tmp_path: Path, kind: str) -> None:
    """A filesystem that hangs, a wrong path, and what Megatron-LM writes for a release checkpoint."""
    before = None
    if kind == "fifo":  # without a writer: opening it waits forever
        os.mkfifo(tmp_path / "latest")
    elif kind == "directory":
        (tmp_path / "latest").mkdir()
    else:
        before = "release\n"
    job = trainings([None] * 9, "--max-restarts", "3", before=before)
    said = job.end(5)
    assert restarts(job) == 3
    assert len([line for line in said.splitlines() if "checkpoint_iteration_file" in line]) == 1
    assert len(job.journal("iteration_unread")) == 1
    assert job.journal("launcher_error") == []
    failed, stopped = job.journal("rank_exit")[0], job.journal("stop")[0]
    assert stopped["mono"] - failed["mono"] < 3.0, "a restart waits for the file for a second"


def test_saved_iterations_reset_the_restart_budget(trainings: Trainings) -> None:
    """With the file there is one measure of progress, for both budgets."""
    flags = "--ft-restarts-reset-on-progress", "--max-restarts", "2", "--ft-max-no-progress-cycles", "0"
    job = trainings([10, 20, 30, None, None, None], *flags)
    job.end(5)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 1, 1, 2]


HANGS = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
wait()
"""


def test_hung_ranks_that_saved_nothing_end_with_93(jobs: Jobs) -> None:
    """The code is the agreed one, not the 137 of the ranks; the incident is reported."""
    file = ["--ft-checkpoint-iteration-file", str(jobs.folder / "latest"), "--max-restarts", "10"]
    job = jobs(HANGS, *file, "--ft-rank-heartbeat-timeout", "0.5", nproc=1)
    job.end(93)
    assert restarts(job) == 1 and len(job.journal("verdict")) == len(job.journal("incident")) == 2


def test_decisions_are_recorded_with_the_number(trainings: Trainings) -> None:
    job = trainings([7, None, None], "--ft-max-no-progress-cycles", "1")
    job.end(93)
    read = [json.dumps(each["event"]) for each in job.journal("decision")]
    assert sum("IterationRead" in each for each in read) == 3, "at the start, and at both failures"
