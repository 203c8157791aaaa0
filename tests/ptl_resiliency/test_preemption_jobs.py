"""Whole jobs that are preempted at one moment after the other, and resume each time where they stopped."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests import preloading
from tests.cluster import Cluster
from tests.processes import Spawned, Spawner

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
PATHS = {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}


@dataclass
class Job:
    """A job of several starts in one folder."""

    spawn: Spawner
    folder: Path
    command: list[str]
    epochs: int = 2
    step: int = 0
    env: dict[str, str] = field(default_factory=dict)
    starts: int = 0

    def start(self, *options: str) -> Spawned:
        self.starts += 1
        own, env = [], PATHS
        if self.launched:
            preload, env = preloading.lightning(self.folder.with_name("installed"), "pytest")
            own = [preload, f"--ft-run-dir={self.run_dir}"]
        return self.spawn([*self.command, *own, *self.program(*options)], env={**env, **self.env})

    def program(self, *options: str) -> list[str]:
        return [PROGRAM, str(self.folder), f"--epochs={self.epochs}", *options]

    @property
    def launched(self) -> bool:
        """Whether by ft_launcher."""
        return self.command[: len(LAUNCHER)] == LAUNCHER

    @property
    def run_dir(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-run-{self.starts}")

    def preempted(self, moment: str, *options: str) -> str:
        """Another start, which gets the signal at this moment; returns what it said."""
        process = self.start(f"--moment={moment}", *options)
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        out = process.output()
        assert f"SIGNAL at {moment}" in out
        before = self.step
        self.stopped(out)
        if self.launched:
            assert agreed(self.run_dir) == [self.step - before]
        return out

    def stopped(self, out: str) -> None:
        """It has saved one checkpoint, and at most one step was lost."""
        assert out.count("Preemption detected, saving checkpoint and exiting") == 1, out[-3000:]
        found = re.search(r"the checkpoint of step (\d+) is complete", out)
        assert found, out[-3000:]
        self.step = int(found[1])
        assert 0 <= max(map(int, re.findall(r"STEP (\d+)", out))) - self.step <= 1
        assert torch.load(self.folder / "last.ckpt", weights_only=False)["global_step"] == self.step
        assert not list(self.folder.glob(".*partial"))

    def completed(self, *options: str) -> str:
        """The last start; returns what it said."""
        process = self.start(*options)
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        return process.output()

    def weights(self) -> torch.Tensor:
        """After the end."""
        found: torch.Tensor = torch.load(self.folder / "weights")
        return found

    def trained(self, rank: int) -> list[float]:
        """What a rank was trained with in all starts."""
        return [number for numbers in self._starts(rank) for number in numbers]

    def lengths(self, rank: int) -> list[int]:
        """How many batches a rank was trained with in each start."""
        return [len(numbers) for numbers in self._starts(rank)]

    def _starts(self, rank: int) -> list[list[float]]:
        files = self.folder.glob(f"trained-{rank}-*")
        ordered = sorted(files, key=lambda path: int(path.name.rsplit("-", 1)[1]))
        return [json.loads(path.read_text()) for path in ordered]


def agreed(run_dir: Path) -> list[int]:
    """After which batches of the start the launchers agreed to stop."""
    lines = [line for path in run_dir.glob("journal-*.jsonl") for line in path.read_text().splitlines()]
    places = [record["place"] for record in map(json.loads, lines) if record["kind"] == "stop_agreed"]
    found = [re.match(r"after batch (\d+)", place) for place in places]
    return [int(each[1]) for each in found if each]


def collectives(out: str) -> list[tuple[str, str]]:
    """Of our callbacks, in how many process groups; for each rank."""
    return re.findall(r"COLLECTIVES (\d+) in (\d+) groups", out)


@pytest.mark.slow
def test_two_ranks_under_ft_launcher(spawn: Spawner, tmp_path: Path) -> None:
    job = Job(spawn, tmp_path / "job", LAUNCHER, epochs=16)
    job.preempted("between 2", "--who=rank", "--step=0.05")
    job.preempted(f"validation at {job.step // 3 * 3 + 6} batch 1", "--step=0.05")
    save = next(
        step for step in range(job.step + 2, job.step + 8) if step % 2 == 0 and step % 6
    )  # with workers
    out = job.preempted(f"save {save}", "--who=all", "--workers=2", "--step=0.05")
    assert collectives(out) == [("0", "1")] * 2
    out = job.completed(f"--moment=train {job.step + 2}", "--who=none", "--and-undisturbed")
    assert out.count("the ranks train on until the launcher ends them") == 1
    reference = Job(spawn, tmp_path / "job-undisturbed", [])
    for rank in (0, 1):
        assert job.trained(rank) == reference.trained(rank)
    assert job.lengths(0) == job.lengths(1) and sum(job.lengths(0)[:-1]) == job.step
    assert torch.equal(job.weights(), reference.weights())


@pytest.mark.slow
def test_two_nodes_of_which_the_second_is_told(spawn: Spawner, tmp_path: Path) -> None:
    cluster = Cluster(spawn, tmp_path)
    job = Job(spawn, tmp_path / "job", [], epochs=200)
    options = job.program("--moment=train 4", "--step=0.01")  # the last rank gives it, to its own launcher
    nodes = [
        cluster.command(name, *_of_two_nodes(cluster.port, node), *options, env=PATHS)
        for node, name in enumerate("ab")
    ]
    for node in nodes:
        node.end(0, CEILING)
    out = "".join(node.spawned.output() for node in nodes)
    job.stopped(out)
    for node in nodes:
        assert f"all ranks stop after batch {job.step}" in node.spawned.err()
        assert agreed(node.run_dir) == [job.step]
    assert "received a stop signal (SIGTERM): stopping all ranks" in nodes[0].spawned.err()
    assert job.lengths(0) == job.lengths(1) == [job.step]


def _of_two_nodes(port: int, node: int) -> list[str]:
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=job"]
    conf = f"--rdzv-conf=last_call_timeout=2,is_host={1 - node}"
    return ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", *rendezvous, conf, "--term-timeout=60"]


@pytest.mark.slow
def test_a_signal_while_one_rank_waits_for_another_in_setup(spawn: Spawner, tmp_path: Path) -> None:
    job = Job(spawn, tmp_path / "job", [*LAUNCHER, "--term-timeout=60"])
    process = job.start("--moment=setup")
    process.wait_for("SIGNAL at setup", CEILING)
    assert process.wait(60) == 0, process.output()[-3000:]
    assert "did not leave" not in process.output()


@pytest.mark.slow
def test_two_ranks_under_torchrun(spawn: Spawner, tmp_path: Path) -> None:
    temporary = {"TMPDIR": str(tmp_path)}  # where torch leaves folders
    job = Job(spawn, tmp_path / "job", TORCHRUN, epochs=14, env=temporary)
    out = job.preempted("train 4", "--who=rank", "--step=0.02")
    assert job.lengths(0) == job.lengths(1) == [job.step]
    assert [groups for _, groups in collectives(out)] == ["2", "2"]
    assert all(
        int(count) > 0 for count, _ in collectives(out)
    )  # so those under ft_launcher would be seen as well
