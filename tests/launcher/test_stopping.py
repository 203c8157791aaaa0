"""Stopping ranks for a restart: at once if they obey, patiently if they save, in any case in bounded time."""

from __future__ import annotations

import pytest

from tests.launcher.conftest import Job, Jobs

IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("pid", os.getpid())
meet()
if CYCLE == 0:
    sys.exit(3) if RANK == 1 else [wait() for _ in iter(int, 1)]
"""


def stopping_time(job: Job) -> float:
    """Seconds from the failure of cycle 0 to the first rank of cycle 1."""
    began = next(each["mono"] for each in job.journal("stop") if each["cycle"] == 0)
    return next(each["mono"] for each in job.journal("rank_start") if each["cycle"] == 1) - began


def test_peer_that_ignores_sigterm_does_not_delay_the_restart(jobs: Jobs) -> None:
    job = jobs(IGNORES, "--max-restarts", "1", "--workers-stop-timeout", "1")
    job.end(0)
    assert 1.0 <= stopping_time(job) < 5
    assert next(each["signal"] for each in job.journal("rank_exit") if each["rank"] == 0) == "SIGKILL"


def test_peer_that_obeys_is_not_waited_for(jobs: Jobs) -> None:
    job = jobs(IGNORES.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", ""), "--max-restarts", "1")
    job.end(0)
    assert stopping_time(job) < 4


def test_stopped_peer_obeys_too(jobs: Jobs) -> None:
    """A rank under SIGSTOP (a debugger, a hang drill) would sit on the SIGTERM."""
    text = """
meet()
if CYCLE == 0:
    sys.exit(3) if RANK == 1 else os.kill(os.getpid(), signal.SIGSTOP)
"""
    job = jobs(text, "--max-restarts", "1")
    job.end(0)
    assert stopping_time(job) < 4


SAVES = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
signal.signal(signal.SIGTERM, {handler})
def save(*_):
    with client.section("checkpointing"):
        say("saves")
        if {first}: meet("saves")
        time.sleep(2.5)
    say("saved")
    sys.exit(0)
if CYCLE == 0:
    meet()
    if RANK == 0:
        save() if {first} else [wait() for _ in iter(int, 1)]
    else:
        if {first}: meet("saves")
        sys.exit(3)
"""


@pytest.mark.parametrize("first", [True, False], ids=["before it is stopped", "because it is stopped"])
def test_rank_that_saves_a_checkpoint_gets_the_time_for_it(jobs: Jobs, first: bool) -> None:
    """The section is open when the stop begins, or the rank's SIGTERM handler opens it."""
    text = SAVES.format(first=first, handler="signal.SIG_IGN" if first else "lambda *_: save()")
    job = jobs(text, "--max-restarts", "1", "--workers-stop-timeout", "0.5")
    job.end(0)
    assert job.lines("^rank 0 cycle 0 saved$")
    assert stopping_time(job) < 12


def test_rank_that_has_saved_gets_no_more_time(jobs: Jobs) -> None:
    text = SAVES.format(first=True, handler="signal.SIG_IGN").replace(
        "sys.exit(0)", "[wait() for _ in iter(int, 1)]"
    )
    job = jobs(text, "--max-restarts", "1", "--workers-stop-timeout", "0.5")
    job.end(0)
    assert job.lines("^rank 0 cycle 0 saved$")
    assert stopping_time(job) < 12
