"""A real job with known losses: `holdfast goodput` accounts for them."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.main import main
from tests.launcher.conftest import Jobs

LOSES = """
from holdfast.fault_tolerance import RankMonitorClient

saved, log = f"{os.environ['NOTES']}/saved", open(f"{os.environ['NOTES']}/log", "a", buffering=1)
client = RankMonitorClient()
client.init_workload_monitoring()
first = int(open(saved).read()) + 1 if os.path.exists(saved) else 1
for step in range(first, 101):
    began = time.time()
    with client.section("step"):
        client.heartbeat(step)
        if (CYCLE, step) == (0, 40):
            wait()
        time.sleep(0.05)
    if (CYCLE, step) == (1, 60):
        kill_me(signal.SIGKILL)
    if step % 25 == 0:
        with client.section("checkpointing"):
            time.sleep(0.2)
            with open(saved, "w") as file:
                file.write(str(step))
    log.write(f"{CYCLE} {step} {began} {time.time()}\\n")
"""
"""Hangs in step 40 and dies in step 60; a checkpoint follows each 25th step."""


@pytest.mark.slow
def test_each_bucket_is_near_the_truth(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ft-rank-section-timeouts=step:3,checkpointing:60", "--max-restarts=3"]
    job = jobs(LOSES, *flags, nproc=1)
    job.end(0)
    steps = [line.split() for line in (job.notes / "log").read_text().splitlines()]
    took = {(int(cycle), int(step)): float(end) - float(began) for cycle, step, began, end in steps}
    saves = sum(took[place] - 0.05 for place in took if place[1] % 25 == 0)
    lost = sum(took[0, step] for step in range(26, 40)) + sum(took[1, step] for step in range(51, 60)) + 0.05
    kept = sum(took.values()) - saves - lost

    assert main(["goodput", str(job.run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    seconds = found["seconds"]
    assert found["lost_steps"] == 15 + 10, "the one that hung included"
    assert seconds["checkpointing"] == pytest.approx(saves, abs=0.3)
    assert seconds["lost"] == pytest.approx(lost, abs=0.3)
    assert seconds["training"] == pytest.approx(kept, abs=1.0)
    assert seconds["undetected"] == pytest.approx(3.0, abs=1.0)
    assert sum(seconds.values()) == pytest.approx(found["wall"], abs=0.1)
    assert found["by_kind"] == {"hang": 1, "crash": 1}
