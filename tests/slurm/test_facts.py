"""What Slurm tells of a job, and what that says of the end of an attempt."""

from __future__ import annotations

from datetime import datetime

import pytest

from holdfast.autoresume.outcome import Scheduler
from holdfast.integrations.slurm.job import Job, Place, job_of, node_name, word_of
from tests.slurm.cluster import REQUIRED, missing
from tests.slurm.conftest import cluster_or_skip

RUNNING = """JobId=6 JobName=train
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:44 TimeLimit=1-00:10:00 TimeMin=N/A
   StartTime=2026-11-21T19:15:23 EndTime=2026-11-21T19:16:07 Deadline=N/A
   PreemptEligibleTime=2026-11-21T19:15:23 PreemptTime=None
   NumNodes=2-3 NodeList=n[1-2] ReqNodeList=(null) ExcNodeList=n4
"""
BEGAN = datetime(2026, 11, 21, 19, 15, 23).timestamp()


def test_what_scontrol_shows_is_read() -> None:
    assert job_of(RUNNING) == Job("RUNNING", 2, BEGAN, 87000.0, False, "n4", nodes=2)
    preempted = RUNNING.replace("PreemptTime=None", "PreemptTime=2026-11-21T19:15:40")
    assert job_of(preempted).preempted
    assert not job_of(RUNNING.replace("Requeue=1", "Requeue=0")).requeueable
    assert job_of(RUNNING.replace("1-00:10:00", "UNLIMITED")).limit is None
    assert job_of("") == Job()
    assert not job_of("").alive


@pytest.mark.parametrize(
    ("state", "alive"),
    [
        *(
            (state, True)
            for state in ("PENDING", "COMPLETING", "RUNNING", "STOPPED", "STAGE_OUT", "SPECIAL_EXIT")
        ),
        *((state, False) for state in ("CANCELLED", "FAILED", "TIMEOUT", "")),
    ],
)
def test_whether_a_job_lives(state: str, alive: bool) -> None:
    assert Job(state).alive is alive


@pytest.mark.parametrize(
    ("job", "code", "now", "expected"),
    [
        (
            Job("RUNNING", began=0, limit=600),
            75,
            100,
            Scheduler.NOTHING,
        ),  # scancel --signal: by the exit code
        (Job("RUNNING", began=0, limit=600), 75, 590, Scheduler.TIME_LIMIT),
        (
            Job("RUNNING", began=0, limit=600),
            75,
            400,
            Scheduler.TIME_LIMIT,
        ),  # 180 s notice, up to 60 s too early
        (Job("RUNNING", began=0, limit=600), 1, 590, Scheduler.NOTHING),  # it failed, whatever the time
        (Job("RUNNING", began=0, limit=None), 75, 590, Scheduler.NOTHING),
        (Job("RUNNING", began=0, limit=600, preempted=True), 75, 100, Scheduler.PREEMPTED),
        (Job("RUNNING", began=0, limit=600, preempted=True), 1, 100, Scheduler.NOTHING),
        (Job("COMPLETING", began=0, limit=600), 75, 100, Scheduler.CANCELLED),
        (Job("COMPLETING", began=0, limit=600), 1, 100, Scheduler.CANCELLED),
        (Job("COMPLETING", began=0, limit=600), 137, 601, Scheduler.TIME_LIMIT),
        (Job("COMPLETING", restarts=1), 143, 100, Scheduler.NODE_LOST),
        (Job("COMPLETING", restarts=1, preempted=True), 143, 100, Scheduler.PREEMPTED),
        (Job(), 1, 100, Scheduler.NOTHING),  # Slurm does not know the job: by the exit code
    ],
)
def test_who_ended_an_attempt(job: Job, code: int, now: float, expected: Scheduler) -> None:
    word = word_of(job, restarts=0, code=code, now=now, notice=180)
    assert word.scheduler is expected
    assert bool(word.says) == (expected is not Scheduler.NOTHING)
    assert word.requeued == (job.restarts > 0)


@pytest.mark.parametrize(
    ("job", "code", "now", "expected"),
    [
        (Job("RUNNING", began=0, limit=600), 137, 577, Scheduler.TIME_LIMIT),
        (Job("RUNNING", began=0, limit=600), 137, 100, Scheduler.NOTHING),  # a SIGTERM by hand
        (Job("RUNNING", began=0, limit=None), 137, 577, Scheduler.NOTHING),
        (Job("RUNNING", began=0, limit=600), 1, 577, Scheduler.NOTHING),  # it failed, whatever the time
        (Job("RUNNING", began=0, limit=600, preempted=True), 137, 100, Scheduler.PREEMPTED),
    ],
)
def test_who_ended_an_attempt_that_did_not_stop_when_it_was_told_to(
    job: Job, code: int, now: float, expected: Scheduler
) -> None:
    word = word_of(job, restarts=0, code=code, now=now, notice=180, told_to_stop=True)
    assert word.scheduler is expected
    unasked = word_of(job, restarts=0, code=code, now=now, notice=180)
    assert unasked.scheduler is Scheduler.NOTHING  # SIGKILL by another process


def test_where_a_process_runs() -> None:
    environ = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    place = Place.of(environ)
    assert place == Place("4711", 2, "n[1-2]")
    assert place.run == "4711.2"
    assert Place.of({}) is None
    assert [node_name(told) for told in ("n1", "n1:4711", "n1.example.org", "")] == ["n1", "n1", "n1", ""]


def test_without_slurm_tests_skip_with_the_reason_and_fail_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRED, raising=False)
    reason = missing()
    with pytest.raises(pytest.skip.Exception) as skipped:
        next(cluster_or_skip())
    assert str(skipped.value) == reason
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception) as failed:
        next(cluster_or_skip())
    assert str(failed.value) == f"{REQUIRED}=1, but {reason}"
