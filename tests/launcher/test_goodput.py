"""A real job with known losses: `holdfast goodput` accounts for them, to 0.2 s of what its programs' clocks say."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.launcher.conftest import LAUNCHER, PRELUDE
from tests.processes import Spawner, wait_until

NEAR = 0.2
"""Seconds. A step takes 0.05."""

LOSES = """
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
client = connect()
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


class Lag:
    """How late this machine wakes a process, at the most: `seconds`, while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.seconds = max(self.seconds, now - before - 0.01)
            before = now


class Noted:
    """The moments that programs have noted by their own clock: unix seconds by attempt, cycle and words."""

    def __init__(self, path: Path) -> None:
        lines = [line.split() for line in path.read_text().splitlines()]
        self.times = [
            (int(attempt), int(cycle), " ".join(what), float(t)) for t, attempt, cycle, *what in lines
        ]

    def at(self, attempt: int, cycle: int, what: str) -> float:
        """When it first noted what begins with this."""
        return min(t for *place, said, t in self.times if place == [attempt, cycle] and said.startswith(what))

    def between(self, what: str, end: str) -> float:
        """Seconds from each of the one to the next of the other."""
        starts = [t for *_, said, t in self.times if said.startswith(what)]
        return sum(t for *_, said, t in self.times if said.startswith(end)) - sum(starts)


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
    with Lag() as lag:
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
    assert main(["goodput", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["seconds"].values()) == pytest.approx(found["wall"], abs=0.1)
    assert found["seconds"] == pytest.approx(truth, abs=NEAR + 2 * lag.seconds)
    assert found["lost_steps"] == 15 + 25, "the one that hung included"
    assert found["by_kind"] == {"hang": 1, "crash": 1}
