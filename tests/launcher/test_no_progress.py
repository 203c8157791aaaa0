"""A job that makes no progress is ended with a code of its own: its cycles save nothing new, or fail alike.

`checkpoint_iteration_file`, `--ft-same-failure-limit`.
"""

from __future__ import annotations

import json
import os
import queue
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.fault_tolerance.launcher.control.messages import IterationRead
from holdfast.fault_tolerance.launcher.driver import IterationFile
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
    (end,) = job.journal("run_end")
    assert end["exit_code"] == 93
    assert "FAILED: rank" in said and "no restart left" not in said
    assert main(["replay", str(job.run_dir)]) == 0
    read = [each for each in job.journal("decision") if "IterationRead" in json.dumps(each["event"])]
    assert len(read) == 5, "at the start, and at each failure"


def test_number_from_before_the_job_is_no_progress(trainings: Trainings) -> None:
    """The scheduler has started the job again: it resumes from iteration 500."""
    job = trainings([500, 500, 500], before="500")
    job.end(93)
    assert restarts(job) == 1


def test_file_that_hangs_ends_no_job(trainings: Trainings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")  # without a writer: opening it waits forever
    job = trainings([None] * 9, "--max-restarts", "3")
    job.end(5)
    assert restarts(job) == 3
    assert len(job.journal("iteration_unread")) == 1 and not job.journal("launcher_error")


@pytest.mark.check
@pytest.mark.parametrize(
    ("content", "number"), [("500\n", 500), (None, 0), ("release\n", -1), ("", -1), ("9" * 19, -1)]
)
def test_number_of_the_file(tmp_path: Path, content: str | None, number: int) -> None:
    """`release` is what Megatron-LM writes for a release checkpoint; -1: the cycle changes nothing."""
    path, answers = tmp_path / "latest", queue.SimpleQueue[object]()
    if content is not None:
        path.write_text(content)
    IterationFile(str(path), answers.put, lambda *_, **__: None).read(3)
    assert answers.get(timeout=30) == IterationRead(3, number)


HANGS = """
client = connect()
client.send_heartbeat()
wait()
"""


def test_hung_ranks_that_saved_nothing_end_with_93(jobs: Jobs) -> None:
    """The code is the agreed one, not the 137 of the ranks; the incident is reported."""
    file = ["--ft-checkpoint-iteration-file", str(jobs.folder / "latest"), "--max-restarts", "10"]
    job = jobs(HANGS, *file, "--ft-rank-heartbeat-timeout", "0.5", nproc=1)
    job.end(93)
    assert restarts(job) == 1 and len(job.journal("verdict")) == len(job.journal("incident")) == 2
    assert [each["reason"] for each in job.journal("iteration_unread")] == ["No such file or directory"]


# -- the same failure ---------------------------------------------------------------------------------------------

RAISES = """
client = connect()
for step in range({steps}[CYCLE] + 1):
    client.heartbeat(step)
meet()
if RANK == CYCLE % 2:
    raise IndexError(f"index {{1000 + CYCLE}} is out of range")
wait()
"""


def test_one_exception_at_one_step_ends_the_job_after_three_cycles(jobs: Jobs) -> None:
    """On whichever rank; its numbers do not count. The evidence is kept, and the decision can be replayed."""
    job = jobs(RAISES.format(steps=[23] * 9), "--max-restarts", "8")
    said = job.end(93)
    assert restarts(job) == 2
    assert "IndexError: index # is out of range after step 23" in job.journal("incident")[-1]["failure"]
    assert "no restart left" not in said
    assert [each["exit_code"] for each in job.journal("run_end")] == [93]
    assert main(["replay", str(job.run_dir)]) == 0


def test_the_same_failure_without_a_limit_uses_all_restarts(jobs: Jobs) -> None:
    """What makes two failures the same: test_failures.py."""
    job = jobs(RAISES.format(steps=[5] * 4), "--max-restarts", "3", "--ft-same-failure-limit", "0")
    job.end(1)
    assert restarts(job) == 3
