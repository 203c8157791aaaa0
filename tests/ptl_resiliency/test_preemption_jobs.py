"""Whole jobs that are preempted at one moment after the other, and go on each time where they stopped."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.processes import Spawned, Spawner
from tests.ptl_resiliency.preempted import fit

PROGRAM = str(Path(__file__).with_name("programs") / "preempted_job.py")
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--master-port=0",
    "--standalone",
]
CEILING = 150.0
"""Seconds. Forking workers takes long on busy cores."""
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass
class Job:
    """A job of several starts in one folder."""

    spawn: Spawner
    folder: Path
    command: list[str]
    epochs: int = 2
    step: int = 0
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *options: str) -> Spawned:
        arguments = [PROGRAM, str(self.folder), f"--epochs={self.epochs}", *options]
        return self.spawn([*self.command, *arguments], env={"PYTHONPATH": f"{ROOT}/src:{ROOT}", **self.env})

    def preempted(self, moment: str, *options: str) -> int:
        """Another start, which gets the signal at this moment; returns how many steps it went on."""
        process = self.start(f"--moment={moment}", *options)
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        out = process.output()
        assert "SIGNAL at" in out and out.count("Preemption detected, saving checkpoint and exiting") == 1, (
            out[-3000:]
        )
        found = re.search(r"the checkpoint of step (\d+) is complete", out)
        assert found, out[-3000:]
        asked = int(moment.split()[-1] if "batch" not in moment else moment.split()[2])
        self.step = int(found[1])
        assert torch.load(self.folder / "last.ckpt", weights_only=False)["global_step"] == self.step
        assert not list(self.folder.glob(".*partial"))
        return self.step - asked

    def completed(self) -> torch.Tensor:
        """The last start; returns the weights."""
        process = self.start()
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        weights: torch.Tensor = torch.load(self.folder / "weights")
        return weights

    def trained(self, rank: int) -> list[float]:
        """What a rank was trained with in all starts."""
        files = sorted(
            self.folder.glob(f"trained-{rank}-*"), key=lambda path: int(path.name.rsplit("-", 1)[1])
        )
        return [number for path in files for number in json.loads(path.read_text())]

    def lengths(self, rank: int) -> list[int]:
        """How many batches a rank was trained with in each start."""
        files = sorted(
            self.folder.glob(f"trained-{rank}-*"), key=lambda path: int(path.name.rsplit("-", 1)[1])
        )
        return [len(json.loads(path.read_text())) for path in files]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_under_ft_launcher(spawn: Spawner, tmp_path: Path) -> None:
    reference = Job(spawn, tmp_path / "reference", LAUNCHER, epochs=14)
    undisturbed = reference.start()  # beside the first start of the other
    job = Job(spawn, tmp_path / "job", LAUNCHER, epochs=14)
    job.preempted("between 2", "--who=rank", "--step=0.02")
    job.preempted(f"validation at {job.step // 3 * 3 + 6} batch 1", "--step=0.02")
    job.preempted(f"save {job.step // 2 * 2 + 4}", "--step=0.02")
    job.preempted(f"train {job.step + 2}", "--who=all", "--workers=2", "--step=0.02")
    weights = job.completed()
    assert undisturbed.wait(CEILING) == 0
    for rank in (0, 1):
        assert job.trained(rank) == reference.trained(rank)
    assert job.lengths(0) == job.lengths(1)
    assert torch.equal(weights, torch.load(tmp_path / "reference" / "weights"))


@pytest.mark.slow
def test_two_ranks_under_torchrun(spawn: Spawner, tmp_path: Path) -> None:
    temporary = {"TMPDIR": str(tmp_path)}  # where torch leaves folders
    job = Job(spawn, tmp_path / "job", TORCHRUN, epochs=14, env=temporary)
    job.preempted("train 4", "--who=rank", "--step=0.02")
    assert job.lengths(0) == job.lengths(1) == [job.step]


@pytest.mark.slow
def test_plain_python_with_a_worker_first(spawn: Spawner, tmp_path: Path) -> None:
    job = Job(spawn, tmp_path / "job", [sys.executable])
    assert job.preempted("train 4", "--who=worker", "--workers=2") == 1
    undisturbed, _ = fit(tmp_path / "undisturbed")
    assert job.trained(0) == undisturbed.trained[:5]
