"""Real jobs with known losses: `holdfast goodput` accounts for them, to 0.2 s of what their own clocks say."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.journal.goodput import BUCKETS
from tests.launcher.conftest import LAUNCHER, PRELUDE, Jobs
from tests.nodes.conftest import QUICK, Cluster
from tests.processes import Spawner, wait_until

NEAR = 0.2
"""Seconds. A step takes 0.05."""

LOSES = """
from holdfast.fault_tolerance import RankMonitorClient

ATTEMPT = os.environ["HOLDFAST_ATTEMPT"]
SAVED, NOTED = f"{os.environ['NOTES']}/saved", open(f"{os.environ['NOTES']}/noted", "a", buffering=1)

def note(what, *more):
    NOTED.write(" ".join(map(str, (time.time(), ATTEMPT, CYCLE, what, *more))) + "\\n")

def save(step):
    note("saves", step)
    with client.section("checkpointing"):
        time.sleep(0.3)
        with open(SAVED, "w") as file:
            file.write(str(step))
    note("saved", step)

def preempted(*_):
    note("preempted")
    time.sleep(0.7)
    with open(SAVED, "w") as file:
        file.write(str(step))
    os._exit(0)

signal.signal(signal.SIGTERM, preempted)
client = RankMonitorClient()
client.init_workload_monitoring()
first = int(open(SAVED).read()) + 1 if os.path.exists(SAVED) else 1
for step in range(first, 161):
    note("step", step)
    with client.section("step"):
        client.heartbeat(step)
        if (ATTEMPT, CYCLE, step) == ("1", 0, 40):
            note("hangs")
            wait()
        time.sleep(0.05)
    if (ATTEMPT, CYCLE, step) == ("1", 1, 75):
        note("dies")
        kill_me(signal.SIGKILL)
    if step % 25 == 0:
        save(step)
    if (ATTEMPT, step) == ("1", 110):
        note("asks")
note("finishes")
open(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"], "w").close()
"""
"""Hangs in step 40; dies after step 75; a checkpoint follows each 25th step. Preempted, it saves and ends."""

COMMAND = """
import os, subprocess, sys, time

def note(*words):
    print(time.time(), os.environ["HOLDFAST_ATTEMPT"], 0, *words, file=noted)

noted = open(os.environ["NOTES"] + "/noted", "a", buffering=1)
note("begins")
launcher = subprocess.Popen(sys.argv[1:])
note("launcher", launcher.pid)
code = launcher.wait()
note("ends")
sys.exit(code)
"""


class Noted:
    """The moments that programs have noted by their own clock: unix seconds by attempt, cycle and words."""

    def __init__(self, path: Path) -> None:
        lines = [line.split() for line in path.read_text().splitlines()]
        self.times = [
            (int(attempt), int(cycle), " ".join(what), float(t)) for t, attempt, cycle, *what in lines
        ]

    def at(self, attempt: int, cycle: int, what: str, which: Callable[..., float] = min) -> float:
        """When the first rank noted what begins with this; or the last one, by `max`."""
        return which(
            t for *place, said, t in self.times if place == [attempt, cycle] and said.startswith(what)
        )

    def between(self, what: str, end: str) -> float:
        """Seconds from each of the one to the next of the other."""
        starts = [t for *_, said, t in self.times if said.startswith(what)]
        return sum(t for *_, said, t in self.times if said.startswith(end)) - sum(starts)


def accounted(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["goodput", str(run_dir), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert sum(found["seconds"].values()) == pytest.approx(found["wall"], abs=0.1)
    return found


@pytest.mark.slow
def test_each_bucket_is_near_the_truth(
    spawn: Spawner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hang, a kill, a preemption, and 20 s in the queue."""
    (tmp_path / "train.py").write_text(PRELUDE + LOSES)
    (tmp_path / "command.py").write_text(COMMAND)
    path = tmp_path / "noted"
    path.touch()
    flags = ["--nproc-per-node=1", "--max-restarts=3", "--ft-rank-section-timeouts=step:3,checkpointing:60"]
    command = [sys.executable, "command.py", *LAUNCHER, *flags, "train.py"]
    chain = ["autoresume", "--run-dir", "run", "--backoff", "20", "--", *command]
    job = spawn([sys.executable, "-m", "holdfast", *chain], env={"NOTES": str(tmp_path)}, cwd=tmp_path)
    job.wait_for("HANG: rank 0")
    noticed = time.time()
    wait_until(lambda: "asks" in path.read_text())
    os.kill(int(path.read_text().partition("launcher ")[2].split()[0]), signal.SIGTERM)
    asked = time.time()
    assert job.wait() == 0, job.output()

    noted = Noted(path)
    at = noted.at
    saves = noted.between("saves", "saved")
    lost = at(1, 0, "hangs") - at(1, 0, "step 26") + at(1, 1, "dies") - at(1, 1, "step 51")
    ends = at(1, 0, "hangs"), at(1, 1, "dies"), asked, at(2, 0, "finishes")
    trained = sum(ends) - sum(at(*place, "step") for place in ((1, 0), (1, 1), (1, 2), (2, 0)))
    truth = {
        "training": trained - saves - lost,
        "lost": lost,
        "checkpointing": saves,
        "validation": 0.0,
        "data": 0.0,
        "start-up": sum(at(attempt, 0, "step") - at(attempt, 0, "begins") for attempt in (1, 2)),
        "undetected": noticed - at(1, 0, "hangs"),
        "restart": at(1, 1, "step") - noticed + at(1, 2, "step") - at(1, 1, "dies"),
        "stopping": at(1, 0, "ends") - asked + at(2, 0, "ends") - at(2, 0, "finishes"),
        "waiting": at(2, 0, "begins") - at(1, 0, "ends"),
        "unknown": 0.0,
    }
    found = accounted(tmp_path / "run", capsys)
    assert found["seconds"] == pytest.approx(truth, abs=NEAR)
    assert found["lost_steps"] == 15 + 25, "the one that hung included"
    assert found["by_kind"] == {"hang": 1, "crash": 1}


LOSES_A_NODE = """
from holdfast.fault_tolerance import RankMonitorClient

SAVED, NOTED = f"{NOTES}/saved", open(f"{NOTES}/noted", "a", buffering=1)

def note(*words):
    print(time.time(), 1, CYCLE, *words, file=NOTED)

client = RankMonitorClient()
client.init_workload_monitoring()
first = int(open(SAVED).read()) + 1 if os.path.exists(SAVED) else 1
for number in range(first, 101):
    note("step", number)
    client.heartbeat(number)
    step(number)
    time.sleep(0.05)
    if number % 25 == 0 and RANK == 0:
        with open(SAVED, "w") as file:
            file.write(str(number))
    if (RANK, CYCLE, number) == (0, 0, 60):
        note("asks")
note("finishes")
"""
"""Two nodes in step; a checkpoint follows each 25th step."""


@pytest.mark.slow
def test_a_lost_node_is_near_the_truth(
    spawn: Spawner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(spawn, tmp_path)
    script, path = cluster.script(LOSES_A_NODE), cluster.notes / "noted"
    path.touch()
    began = time.time()
    options = ["--ft-run-dir", str(tmp_path / "run")]
    a, b = (cluster.launch(name, script, *options, nnodes="1:2", node_timeout=QUICK) for name in "ab")
    wait_until(lambda: "asks" in path.read_text())
    lost = time.time()
    b.vanish()
    a.wait_for("NODE LOST")
    noticed = time.time()
    a.end(0)
    ended = time.time()

    at = Noted(path).at
    again = lost - at(1, 0, "step 51")
    truth = {
        "training": at(1, 0, "step 51") - at(1, 0, "step") + at(1, 1, "finishes", max) - at(1, 1, "step"),
        "lost": again,
        "start-up": at(1, 0, "step") - began,
        "undetected": noticed - lost,
        "restart": at(1, 1, "step") - noticed,
        "stopping": ended - at(1, 1, "finishes", max),
    }
    found = accounted(tmp_path / "run", capsys)
    assert found["seconds"] == pytest.approx({**dict.fromkeys(BUCKETS, 0.0), **truth}, abs=NEAR)
    assert found["by_kind"] == {"node lost": 1}


TRAINS = """
from holdfast.fault_tolerance import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
for step in range(1, 100000):
    client.heartbeat(step)
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_job_that_runs_is_known_up_to_now_and_a_killed_launcher_at_once(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    job = jobs(TRAINS, nproc=1)
    wait_until(lambda: list(job.run_dir.glob("newest-*")))
    found = accounted(job.run_dir, capsys)
    assert found["end"] == "" and found["ended"] == pytest.approx(time.time(), abs=5)
    assert found["seconds"]["training"] > 9
    os.kill(job.pid, signal.SIGKILL)
    job.spawned.wait()
    killed = time.time()
    found = accounted(job.run_dir, capsys)
    assert found["end"].startswith("the job ended without a record at 20")
    assert killed - 12 < found["ended"] <= killed
