"""A job whose script knows nothing of Holdfast: its optimizer's steps are its progress."""

from __future__ import annotations

import json

import pytest

from tests.launcher.conftest import Jobs

TRAINS = """
import torch
assert not [name for name in sys.modules if name.startswith("holdfast")]
assert not [name for name in os.environ if name in ("HOLDFAST_OPTIMIZER_STEPS", "HOLDFAST_MODULES_FILE")]
weight = torch.nn.Parameter(torch.zeros(2))
sgd = torch.optim.SGD([weight], lr=0.1)

def train(steps):
    for _ in range(steps):
        weight.sum().backward()
        sgd.step()
    say("at", float(weight[0]))

"""


@pytest.mark.slow
def test_a_hang_between_two_steps_is_found_and_the_restart_is_told(jobs: Jobs) -> None:
    text = TRAINS + "train(4)\nif CYCLE == 0: wait()\n"
    flags = ("--ft-warm-start", "on", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "2")
    job = jobs(text, *flags)
    job.end(0)
    (start,) = job.journal("run_start")
    assert start["limits"].startswith(
        "for every rank: from one optimizer step to the next 2 s; for ranks that connect"
    )
    (verdict,) = job.journal("verdict")
    assert (verdict["reason"], verdict["limit"], verdict["connected"]) == ("heartbeat", 2.0, False)
    firsts = [
        (record["cycle"], record["rank"], record["step"], record["counted"])
        for record in job.journal("first_step")
    ]
    assert sorted(firsts) == [(cycle, rank, 1, True) for cycle in (0, 1) for rank in (0, 1)]
    (listed,) = (job.run_dir / "preload").glob("*.json")
    names = [name for name, _ in json.loads(listed.read_text())["modules"]]
    assert "torch" in names and not [name for name in names if name.startswith("holdfast")]
    (longest,) = [record["longest"] for record in job.journal("counted_steps") if record["cycle"] == 0]
    assert longest > 2
    (learned,) = job.run_dir.glob("learned-limits-*.json")  # of the cycle that succeeded
    state = json.loads(learned.read_text())["current_timeouts"]
    assert state["heartbeat"]["initial"] == 300.0
    assert 2.0 <= state["heartbeat"]["subsequent"] < 10.0  # the floor is what the user configured
    assert [record["seconds"] > 0 for record in job.journal("resume")] == [True]


@pytest.mark.slow
def test_more_steps_than_before_are_progress(jobs: Jobs) -> None:
    """With one restart allowed, two crashes in a row would end the job."""
    text = TRAINS + "train(4 + 2 * CYCLE)\nif CYCLE < 3: sys.exit(7)"
    job = jobs(text, "--max-restarts", "1", "--ft-restarts-reset-on-progress", nproc=1)
    job.end(0)
    assert [record["steps"] for record in job.journal("counted_steps")] == [4, 6, 8, 10]


def test_steps_are_not_counted_where_the_user_does_not_want_it(jobs: Jobs) -> None:
    flags = ("--ft-ignore-optimizer-steps", "--ft-rank-heartbeat-timeout", "600")
    job = jobs(TRAINS + "train(4)", *flags, nproc=1)
    job.end(0)
    assert job.journal("first_step", "first_heartbeat", "verdict") == []
    (start,) = job.journal("run_start")
    assert start["limits"].startswith("for ranks that connect: first heartbeat 3600 s, heartbeat 600 s")
