"""A rank that fails in whatever way: all ranks start again together, as often as `--max-restarts` allows."""

from __future__ import annotations

import pytest

from tests.launcher.conftest import Jobs

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
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
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
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
if CYCLE < 2:
    with client.section("checkpointing"):
        say("saves")
sys.exit(5)
"""


def test_a_new_checkpoint_is_progress(jobs: Jobs) -> None:
    job = jobs(CHECKPOINTS, "--max-restarts", "1", "--ft-restarts-reset-on-progress", nproc=1)
    job.end(5)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 1]


BRIEF = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.heartbeat(step=5 + CYCLE)
os._exit(0 if CYCLE else 3)
"""


def test_what_a_rank_did_just_before_its_end_is_in_the_journal(jobs: Jobs) -> None:
    """The monitor looks about once a second; a rank may be gone before."""
    job = jobs(BRIEF, "--max-restarts", "1", nproc=1)
    said = job.end(0)
    assert [each["cycle"] for each in job.journal("rank_connect")] == [0, 1]
    assert [(each["cycle"], each["step"]) for each in job.journal("first_step")] == [(0, 5), (1, 6)]
    assert len(job.journal("resume")) == 1 and "step 6 resumed " in said
