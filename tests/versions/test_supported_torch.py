"""One training through everything that a job survives: `make matrix` runs this file on each supported torch.

The expected steps, exit codes and journal records are written here, so they are the same for every version.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import LAUNCHER, patient, records
from tests.processes import Spawned, Spawner, free_port

TRAIN = Path(__file__).with_name("train.py")
LIMITS = ["--ft-rank-section-timeouts", "data_loading:60,step:5,checkpointing:60"]
TOO_OLD = "torch 2.6.0 is too old: Holdfast needs torch 2.8 or newer."
HANG_AND_KILL = "sleep@step=7,rank=1,cycle=0 ; kill@step=13,rank=0,cycle=1"

pytestmark = pytest.mark.slow


class Training:
    """Jobs of the training in one folder; `run` is the run directory of the newest launcher."""

    def __init__(self, spawn: Spawner, folder: Path) -> None:
        self._spawn, self.folder, self.run = spawn, folder, folder

    def start(
        self, *flags: str, faults: str = "", name: str = "run", nproc: int = 2, own: str = ""
    ) -> Spawned:
        """Start a launcher with these flags; `own` is for the script."""
        self.run = self.folder / name
        launcher = [*patient(), *LAUNCHER, f"--nproc-per-node={nproc}", "--ft-run-dir", self.run, *flags]
        env = {"HOLDFAST_FAULT": faults, "OMP_NUM_THREADS": "1"}
        return self._spawn([*launcher, TRAIN, "--dir", self.folder, *own.split()], env=env, cwd=self.folder)

    def end(self, *flags: str, **options: Any) -> tuple[Spawned, dict[str, Any]]:
        """A job that ends with exit code 0, and its result."""
        job = self.start(*flags, **options)
        assert job.wait() == 0, job.output()
        (line,) = re.findall(r"^\{.*\}$", job.out(), re.MULTILINE)
        return job, json.loads(line)

    def steps(self, rank: int) -> list[tuple[int, int]]:
        """The cycle and the number of each step that this rank has taken."""
        lines = (self.folder / f"steps-{rank}").read_text().splitlines()
        return [(int(cycle), int(step)) for cycle, step in map(str.split, lines)]

    def journal(self, kind: str, run: Path | None = None) -> list[dict[str, Any]]:
        paths = (run or self.run).glob("journal-*.jsonl")
        return [record for path in paths for record in records(path) if record["kind"] == kind]


@pytest.fixture
def training(spawn: Spawner, tmp_path: Path) -> Training:
    return Training(spawn, tmp_path)


def in_cycle(cycle: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(cycle, step) for step in range(first, last + 1)]


@pytest.fixture(scope="session")
def weights() -> list[float]:
    """What 20 undisturbed steps on two ranks give; all-reduce adds the gradients of both."""
    import torch

    value = torch.zeros(8)
    for step in range(1, 21):
        value -= 0.05 * (2 * value - 3.0 * step)
    return value.tolist()


def test_undisturbed_job_takes_each_step_once(training: Training, weights: list[float]) -> None:
    """Section timeouts are learned, and are the same on each rank; no rank is slow."""
    _, result = training.end(own="--step-seconds 0.1")  # on a busy machine some ranks sleep several ms longer
    assert result["weights"] == pytest.approx(weights)
    assert result["slow"] == [] and result["learned"] and result["limits"]["step"] > 0
    assert training.steps(0) == training.steps(1) == in_cycle(0, 1, 20)
    assert [record["exit_code"] for record in training.journal("run_end")] == [0]
    assert training.journal("rank_exit") and not training.journal("restart")


@pytest.mark.parametrize(
    "start", [pytest.param("warm", marks=pytest.mark.check), pytest.param("cold", marks=pytest.mark.variant)]
)
def test_hang_and_kill_are_survived(training: Training, weights: list[float], start: str) -> None:
    """The verdict on the hang names the culprit from stacks and collectives; ranks restart warm where asked to."""
    flags = ("--max-restarts=3", f"--ft-warm-start={'auto' if start == 'warm' else 'off'}", *LIMITS)
    job, result = training.end(*flags, faults=HANG_AND_KILL, own="--step-seconds 0.1")
    assert result["weights"] == pytest.approx(weights)
    after = in_cycle(1, 6, 12) + in_cycle(2, 11, 20)
    assert training.steps(0) == training.steps(1) == in_cycle(0, 1, 6) + after
    restarts = [(record["cycle"], record["restarts_used"]) for record in training.journal("restart")]
    assert restarts == [(1, 1), (2, 2)]
    (verdict,) = [record for record in training.journal("verdict") if record["rank"] == 1]
    assert verdict["culprit"] == 1
    hang, crash = training.journal("incident")
    assert (hang["rank"], crash["rank"]) == (1, 0)
    report = (training.run / "incidents" / "0001" / "report.txt").read_text()
    for part in ("Python stack", "train.py:", "all_reduce (sequence 8) of"):
        assert part in report, report
    starts = {(record["cycle"], record["start"]) for record in training.journal("rank_start")}
    assert {each for each in starts if each[0] > 0} == {(1, start), (2, start)}, job.output()
    assert [record["exit_code"] for record in training.journal("run_end")] == [0]


@pytest.mark.variant  # of those in tests/nodes
def test_two_nodes_restart_together(training: Training, weights: list[float]) -> None:
    """One budget of restarts, one result, and both launchers exit with 0."""
    common = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", "--max-restarts=3", *LIMITS]
    common += [f"--rdzv-endpoint=localhost:{free_port()}"]
    job: dict[str, Any] = {"faults": HANG_AND_KILL, "nproc": 1, "own": "--step-seconds 0.1"}
    first = training.start(*common, "--node-rank=0", "--rdzv-conf=is_host=1", name="run-0", **job)
    second = training.start(*common, "--node-rank=1", "--rdzv-conf=is_host=0", name="run-1", **job)
    nodes = (first, second)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].output() + nodes[1].output()
    (line,) = re.findall(r"^\{.*\}$", nodes[0].out() + nodes[1].out(), re.MULTILINE)
    assert json.loads(line)["weights"] == pytest.approx(weights)
    after = in_cycle(1, 6, 12) + in_cycle(2, 11, 20)
    assert training.steps(0) == training.steps(1) == in_cycle(0, 1, 6) + after
    for number in range(2):
        restarts = training.journal("restart", training.folder / f"run-{number}")
        assert [(record["cycle"], record["restarts_used"]) for record in restarts] == [(1, 1), (2, 2)]


@pytest.mark.check
def test_preempted_job_saves_and_resumes(training: Training, weights: list[float]) -> None:
    """SIGTERM to the launcher: both ranks stop after one step, exit code 0; the next job takes the other steps."""
    job = training.start(own="--step-seconds 0.5")
    job.wait_for(lambda: (training.folder / "steps-0").exists() and len(training.steps(0)) >= 3)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.output()
    before = training.steps(0)
    assert before == training.steps(1) == in_cycle(0, 1, len(before)) and len(before) < 20
    assert [record["signal"] for record in training.journal("preemption")] == ["SIGTERM"]
    _, result = training.end(name="run-2")
    assert result["weights"] == pytest.approx(weights)
    assert training.steps(0) == training.steps(1) == in_cycle(0, 1, 20)


def test_slow_rank_is_named(training: Training) -> None:
    _, result = training.end(own="--slow-rank 1")
    assert result["slow"] == [1]


@pytest.mark.parametrize(
    "command",
    [
        [*LAUNCHER, "--nproc-per-node=2", str(TRAIN), "--dir", "."],
        [*LAUNCHER, "--help"],
        [sys.executable, "-m", "holdfast", "doctor"],
    ],
    ids=["launch", "help", "doctor"],
)
def test_too_old_torch_is_one_line(spawn: Spawner, tmp_path: Path, command: list[str]) -> None:
    """Exit code 2, before anything is started. The old torch is metadata alone: it is not imported."""
    job = spawn(command, env={"PYTHONPATH": old_torch(tmp_path)}, cwd=tmp_path)
    assert job.wait() == 2, job.output()
    assert job.out() == ""
    (line,) = job.err().splitlines()
    assert line.endswith(f"error: {TOO_OLD} Install it with: pip install 'torch>=2.8'")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("straggler", "Detector"),
        ("ptl_resiliency", "PreemptionCallback"),
        ("integrations.transformers", "FaultToleranceCallback"),
    ],
)
def test_too_old_torch_fails_the_import(spawn: Spawner, tmp_path: Path, module: str, name: str) -> None:
    job = spawn.python(f"from holdfast.{module} import {name}", env={"PYTHONPATH": old_torch(tmp_path)})
    assert job.wait() == 1
    assert TOO_OLD in job.err().splitlines()[-1]


def old_torch(folder: Path) -> str:
    """A search path on which torch 2.6.0 comes first."""
    metadata = folder / "torch-2.6.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    return os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
