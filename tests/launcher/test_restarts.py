"""A rank that fails in whatever way: all ranks start again together, as often as `--max-restarts` allows.

Ranks that obey are stopped at once, those that save have time, and in any case it is bounded.
"""

from __future__ import annotations

import pytest

from tests.launcher.conftest import Job, Jobs

FAILS_THREE_WAYS = """
say("pid", os.getpid(), "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
meet()
if CYCLE == 3:
    sys.exit(0)
if RANK == 1:
    if CYCLE == 0:
        kill_me(signal.SIGKILL)
    if CYCLE == 1:
        raise ValueError("bad batch")
    sys.exit(7)
wait()
"""


def test_every_way_to_fail_restarts_all_ranks(jobs: Jobs) -> None:
    job = jobs(FAILS_THREE_WAYS, "--max-restarts", "3")
    job.end(0)
    pids = [job.hear(r"pid (\d+) of 3", ranks=[0, 1], cycle=cycle) for cycle in range(4)]
    assert len({pid for of_cycle in pids for pid in of_cycle.values()}) == 8, "every rank is a new process"
    exits = [(each["exitcode"], each["signal"]) for each in job.journal("rank_exit") if each["rank"] == 1]
    assert exits == [(None, "SIGKILL"), (1, None), (7, None), (0, None)]
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 2, 3]
    # Before a restart one line is enough.
    assert ["FAILED: rank 1" in line for line in job.said() if "FAILED" in line or "Traceback" in line] == [
        True
    ] * 3


@pytest.mark.parametrize("limit", [0, 2])
def test_no_restart_beyond_the_limit(jobs: Jobs, limit: int) -> None:
    """Without the option there is none, as with torchrun."""
    flags = ("--max-restarts", "2") if limit else ()
    job = jobs("say('here')\nmeet()\nsys.exit(7) if RANK == 0 else wait()", *flags)
    job.end(7)
    assert [len(job.lines(f"^rank 0 cycle {cycle} here")) for cycle in range(limit + 2)] == [1] * (
        limit + 1
    ) + [0]
    assert [each["exit_code"] for each in job.journal("run_end")] == [7]


PROGRESS = """
client = connect()
reached = {reached}
client.heartbeat(step=reached[CYCLE])
say("at step", reached[CYCLE])
sys.exit(5)
"""


def test_restarts_in_a_row_count_anew_after_progress(jobs: Jobs) -> None:
    """Two restarts are allowed; steps 10, 20, 30 are progress, staying at 30 is none."""
    text = PROGRESS.format(reached=[10, 20, 30, 30, 30, 30, 30])
    job = jobs(text, "--max-restarts", "2", "--ft-restarts-reset-on-progress", nproc=1)
    job.end(5)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 1, 1, 2]
    assert len(job.lines("at step")) == 5


CHECKPOINTS = """
client = connect()
if CYCLE < 2:
    with client.section("checkpointing"):
        say("saves")
sys.exit(5)
"""


def test_a_new_checkpoint_is_progress(jobs: Jobs) -> None:
    job = jobs(CHECKPOINTS, "--max-restarts", "1", "--ft-restarts-reset-on-progress", nproc=1)
    job.end(5)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 1]


# -- stopping ranks for a restart ----------------------------------------------------------------------------

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
client = connect()
def save(*_):
    with client.section("checkpointing"):
        say("saves")
        {saving}
        time.sleep(2.5)
    say("saved")
    {then}
signal.signal(signal.SIGTERM, {handler})
if CYCLE == 0:
    meet()
    if RANK == 0:
        {first}
        [wait() for _ in iter(int, 1)]
    {other}
    sys.exit(3)
"""
BEFORE = {"saving": 'meet("saves")', "then": "pass", "handler": "signal.SIG_IGN"}
BEFORE |= {"first": "save()", "other": 'meet("saves")'}
BECAUSE = {"saving": "pass", "then": "sys.exit(0)", "handler": "save", "first": "pass", "other": "pass"}


@pytest.mark.parametrize("saves", [BEFORE, BECAUSE], ids=["before it is stopped", "because it is stopped"])
def test_rank_that_saves_a_checkpoint_gets_the_time_for_it(jobs: Jobs, saves: dict[str, str]) -> None:
    """The section is open when the stop begins, or the rank's SIGTERM handler opens it. Then it gets no more time."""
    job = jobs(SAVES.format(**saves), "--max-restarts", "1", "--workers-stop-timeout", "0.5")
    job.end(0)
    assert job.lines("^rank 0 cycle 0 saved$")
    assert stopping_time(job) < 12
