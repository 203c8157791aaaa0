"""A training on the test cluster: submitted once, disturbed by the test, and judged by what it leaves.

Owns `Training`: the job of `holdfast slurm`, its log, its ledger, its ranks as processes, and its result. What always
holds: every wait ends with its event, or fails with the job's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.jobs import LAUNCHER
from tests.processes import wait_until
from tests.slurm.cluster import Cluster

if TYPE_CHECKING:
    from typing_extensions import Self

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAIN = EXAMPLES / "char_transformer" / "train.py"
SAVE_EVERY = 5
START = 150.0
"""Seconds at most for something that needs ranks to start: 5 until Slurm requeues, then torch's imports."""

OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}


class Training:
    """One run directory, and the job that trains in it."""

    def __init__(self, cluster: Cluster, folder: Path, program: Sequence[str | os.PathLike[str]]) -> None:
        self.cluster = cluster
        self.run = folder / "run with a blank"
        self.log = folder / "job.log"
        self.job = ""
        self._program = [os.fspath(word) for word in program]

    @classmethod
    def of_characters(cls, cluster: Cluster, folder: Path, steps: int, pace: float = 0.25) -> Self:
        """The character model."""
        training = cls(cluster, folder, [])
        words = ["--ft-rank-section-timeouts=step:30,data_loading:30,checkpointing:60", TRAIN]
        options = ["--dir", training.run / "checkpoints", "--steps", str(steps), "--pace", str(pace)]
        training._program = [str(word) for word in [*words, *options, "--batch-size", "4"]]
        return training

    def start(
        self,
        *options: str,
        nodes: int = 2,
        ranks: int = 1,
        restarts: int = 0,
        launcher: Sequence[str] = LAUNCHER,
        environ: Mapping[str, str] = {},
    ) -> subprocess.CompletedProcess[str]:
        """Submit it; what `holdfast slurm` answered."""
        command = [sys.executable, "-m", "holdfast", "slurm", f"--run-dir={self.run}", f"--nodes={nodes}"]
        limits = ["--notice=20", "--time=10", "--sbatch=--cpus-per-task=2"]
        started = [*launcher, f"--max-restarts={restarts}", f"--nproc-per-node={ranks}"]
        port = f"--port={self.cluster.settings.spare_port}"
        words = [*command, port, *limits, *options, "--", *started, *self._program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            self.job = done.stdout.strip()
            self.log = self.run / f"slurm-{self.job}.log"
        return done

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, pattern: str, count: int = 1, seconds: float = START) -> None:
        """Until the log has as many matches."""
        self.wait(lambda: len(self.matches(pattern)) >= count, seconds, f"{count} × {pattern!r}")

    def matches(self, pattern: str) -> list[str]:
        """Of the log; of a group those of the group."""
        return re.findall(pattern, self.text(), re.MULTILINE)

    def wait(self, happened: Callable[[], object], seconds: float, what: str) -> None:
        try:
            wait_until(happened, seconds, what)
        except pytest.fail.Exception as error:
            tail = "\n".join(self.text().splitlines()[-40:])
            pytest.fail(f"{error}\n{self.left()}\n{self.cluster.run('squeue')}\n{tail}\n{self.cluster.log()}")

    def wait_for_step(self, step: int) -> None:
        """Until rank 0 has told of this step (it tells of each tenth)."""
        self.wait_for(rf"^step +{step} of")

    def goes_on(self, steps: int = 1) -> None:
        """Until rank 0 has told of so many more steps."""
        self.wait_for(r"^step +\d+ of", len(self.matches(r"^step +\d+ of")) + steps)

    def check_lost_steps(self) -> None:
        """Each resumption is from the step that was saved for it, or from the last checkpoint before the failure."""
        reached, saved = 0, None
        for line in self.text().splitlines():
            if told := re.match(r"step +(\d+) of", line):
                reached = int(told[1])
            elif stopped := re.match(r"stopped after step (\d+)", line):
                saved = int(stopped[1])
            elif resumed := re.match(r"resumed from the checkpoint of step (\d+)", line):
                step = int(resumed[1])
                assert step == saved if saved is not None else step >= reached - SAVE_EVERY, self.text()
                reached, saved = step, None

    def end(self, job: str = "", seconds: float = START) -> str:
        """Wait for a job to be over for good; its state and exit code, such as `FAILED 1:0`."""
        job = job or self.job
        shown: dict[str, str] = {}

        def over() -> bool:
            text = self.cluster.run("scontrol", "show", "job", job)
            shown.update(re.findall(r"\b(JobState|ExitCode)=(\S+)", text))
            return shown["JobState"] in OVER

        self.wait(over, seconds, f"the end of job {job}")
        return f"{shown['JobState']} {shown['ExitCode']}"

    def a_rank(self, *nodes: str) -> psutil.Process:
        """One of the ranks that run on these nodes; who gets which number is the rendezvous' choice."""
        ranks = self.ranks(*nodes)
        return ranks[max(ranks)]

    def ranks(self, *nodes: str) -> dict[int, psutil.Process]:
        """The ranks that run on these nodes (default: on all), by number; without children of theirs."""
        found: dict[int, psutil.Process] = {}
        for process in self.cluster.processes(*nodes):
            try:
                rank = process.environ().get("RANK")
                if rank and process.pid == os.getsid(process.pid):
                    found[int(rank)] = process
            except (psutil.Error, OSError):
                continue
        return found

    def left(self) -> list[str]:
        """What of the job runs on any node. Slurm's own slurmstepd, is not the job's."""
        found = []
        for process in self.cluster.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() != "slurmstepd":
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:150]}")
        return found

    def wait_until_nothing_is_left(self) -> None:
        self.wait(lambda: not self.left(), 60, "nothing of the job to be left on any node")

    @property
    def resumed(self) -> list[int]:
        """The steps from which attempts and restarts resumed."""
        return [int(step) for step in self.matches(r"^resumed from the checkpoint of step (\d+)")]

    @property
    def stopped(self) -> list[int]:
        """The steps after which it stopped on request, all saved."""
        return [int(step) for step in self.matches(r"^stopped after step (\d+)")]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "checkpoints" / "result.json").read_text())
        return found

    def chains(self) -> list[dict[str, Any]]:
        """The ledger."""
        command = [sys.executable, "-m", "holdfast", "autoresume", "--status", str(self.run), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def kinds(self, chain: int = 0) -> list[str]:
        """How the attempts of a chain ended."""
        return [attempt["kind"] for attempt in self.chains()[chain]["attempts"]]


def undisturbed(folder: Path, steps: int, ranks: int) -> dict[str, Any]:
    """The result of undisturbed ranks, on no cluster at all."""
    launcher = [*LAUNCHER, f"--nproc-per-node={ranks}"]
    options = ["--dir", folder, "--steps", str(steps), "--batch-size", "4"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launcher, TRAIN, *options]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found
