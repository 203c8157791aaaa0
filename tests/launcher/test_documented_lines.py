"""The documented lines after a failure: one for each rank past its timeout, one for each rank that is stopped.

NeMo's page on resiliency shows them: "Did not get subsequent heartbeat. Waited 171.92 seconds." and "Sending process
453152 closing signal SIGTERM". Scripts of users search logs for these sentences.
"""

from __future__ import annotations

import re

import pytest

from tests.launcher.conftest import Job, Jobs

CLOSING = r"^\[holdfast\] Sending process (\d+) closing signal SIGTERM$"
SILENT = (
    r"^\[holdfast\] .*\brank (\d+) \(node [^,]+, pid (\d+), cycle 0\): "
    r"Did not get subsequent heartbeat\. Waited (\d+\.\d\d) seconds\."
)
TIMEOUT = 1.0

TWO_OF_THREE_HANG = """
client = connect()
client.send_heartbeat()
meet()
client.send_heartbeat()
while RANK == 0:
    client.send_heartbeat()
    time.sleep(0.02)
wait()
"""


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks are started is not the topic here, and a zygote imports torch."""
    monkeypatch.setenv("PET_FT_WARM_START", "off")


def pids(job: Job) -> dict[int, int]:
    """Rank -> pid in cycle 0."""
    return {each["rank"]: each["pid"] for each in job.journal("rank_start") if each["cycle"] == 0}


def found(pattern: str, text: str) -> list[tuple[str, ...]]:
    """The groups of each line that matches."""
    return [match.groups() for match in re.finditer(pattern, text, re.MULTILINE)]


def silent_ranks(jobs: Jobs, level: str) -> Job:
    """A job in which two of three ranks hang at the same time."""
    flags = "--ft-rank-heartbeat-timeout", str(TIMEOUT), "--ft-log-level", level
    return jobs(TWO_OF_THREE_HANG, *flags, nproc=3)


def test_ranks_past_their_timeouts_and_those_that_are_stopped_have_a_line_each(jobs: Jobs) -> None:
    job = silent_ranks(jobs, "WARNING")
    output = job.end(137)
    lines = found(SILENT, "\n".join(line for line in output.splitlines() if "FAILED" not in line))
    assert sorted((int(rank), int(pid)) for rank, pid, _ in lines) == sorted(
        (rank, pid) for rank, pid in pids(job).items() if rank
    )
    assert all(float(waited) >= TIMEOUT for _, _, waited in lines)
    (verdict,) = job.journal("verdict")
    overdue = job.journal("overdue")
    assert {each["rank"]: each["pid"] for each in overdue} == {rank: pids(job)[rank] for rank in (1, 2)}
    assert len(overdue) == 2 and verdict["overdue_rank"] in (1, 2)
    for each in overdue:
        assert (each["cycle"], each["reason"], each["limit"]) == (0, "heartbeat", TIMEOUT)
        assert each["waited"] >= TIMEOUT
    others = {str(pid) for rank, pid in pids(job).items() if rank != verdict["rank"]}
    assert sorted(pid for (pid,) in found(CLOSING, output)) == sorted(others)


def test_log_level_hides_them(jobs: Jobs) -> None:
    output = silent_ranks(jobs, "ERROR").end(137)
    assert not found(CLOSING, output), "a warning is logged at level ERROR"
    assert "HANG" not in output and re.search(r"^\[holdfast\] FAILED: rank [12] ", output, re.MULTILINE)
