"""Trainings that NeMo-Run starts: chains of jobs on a real Slurm, and its FaultTolerance launcher on this machine."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.conftest import linked, python  # noqa: F401
from tests.processes import Spawned, Spawner, wait_until
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slow

DRIVE = Path(__file__).with_name("drive.py")
ROOT = DRIVE.parents[3]


@pytest.fixture
def cluster(accounting_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in accounting_cluster.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    yield accounting_cluster
    accounting_cluster.clear()


class Chain:
    """A training that NeMo-Run has submitted, seen by its files."""

    def __init__(self, spawn: Spawner, port: int, folder: Path, nemo_home: Path, *words: str) -> None:
        kind, *others = words
        self.folder, self._home = folder, nemo_home
        self.driver: Spawned = spawn([sys.executable, str(DRIVE), kind, str(port), str(folder), *others])

    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def saved(self) -> int:
        path = self.folder / "saved"
        return int(path.read_text() or 0) if path.exists() else 0

    def results(self) -> list[str]:
        """The letters of the attempts."""
        (path,) = self._home.rglob("*_job_results")
        return [line.split()[2] for line in path.read_text().splitlines()]

    def step_told(self) -> int:
        """Where the first attempt's last cycle began, as the job script has it from the launchers."""
        (path,) = self._home.rglob("*_job_results")
        return int(path.read_text().split()[3])

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._home.rglob("*.out")))

    def final(self) -> str:
        """What NeMo-Run says at the end."""
        found = self.driver.wait_for(r"Job \d+ finished: (\w+)", 240)
        assert isinstance(found, re.Match)
        assert self.driver.wait() == 0
        return found[1]

    def run_ids(self) -> list[str]:
        """The W&B run of each start of a rank."""
        return [line.split()[-1] for line in self.events() if "is run" in line]

    def steps_begun(self) -> list[int]:
        """The step from which each start of rank 0 resumed."""
        return [int(line.split()[-1]) for line in self.events() if "rank 0: from step" in line]


Chains = Callable[..., Chain]


@pytest.fixture
def chain(cluster: Cluster, spawn: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chains:
    monkeypatch.setenv("NEMORUN_HOME", str(tmp_path / "nemo"))
    folder = tmp_path / "run"
    folder.mkdir()
    return lambda *words: Chain(spawn, cluster.settings.spare_port, folder, tmp_path / "nemo", *words)


def preempt(cluster: Cluster, chain: Chain, step: int) -> None:
    wait_until(lambda: chain.saved() >= step, 200, f"step {step}; so far {chain.events()}")
    (job,) = cluster.run("squeue", "--noheader", "--format=%i").split()
    cluster.run("scancel", "--signal=TERM", job)


def test_nemo_runs_own_launcher_and_job_script(cluster: Cluster, chain: Chains) -> None:
    """A rank hangs: restart in the job. One fails, no restart is left: another job. Preempted: another job."""
    job = chain("stock", "120", "2", "hang:3", "exit:6")
    preempt(cluster, job, 14)
    assert job.final() == "SUCCEEDED"
    assert job.results() == ["F", "S", "S"]
    hung, restarted, failed, preempted = job.steps_begun()
    assert (hung, restarted, failed) == (0, 2, 5)
    assert f"1.0 rank 1: preempted at step {preempted}" in job.events()
    assert {"2.0 rank 0: finished at step 120", "2.0 rank 1: finished at step 120"} <= set(job.events())


def test_the_plugins_with_lightning(cluster: Cluster, chain: Chains) -> None:
    """A rank hangs: restart in the job. Preempted: a checkpoint, and another job, which resumes there.

    `WandbPlugin`: the restart and the requeued job continue the same run.
    """
    job = chain("lightning", "120", "1", "hang:3")
    preempt(cluster, job, 14)
    assert job.final() == "SUCCEEDED"
    assert job.results() == ["P", "S"]
    assert job.steps_begun()[:2] == [0, 2]
    assert 14 <= job.steps_begun()[2] < 120
    assert job.step_told() in (2, 3)
    assert "1.0 rank 0: fit ends at step 120" in job.events()
    assert "Preemption detected, saving checkpoint and exiting" in job.log()
    assert len(job.run_ids()) >= 6 and len(set(job.run_ids())) == 1
    assert re.fullmatch("[0-9a-f]{8}", job.run_ids()[0])


def test_a_job_that_fails_at_once_is_given_up_and_nemo_run_says_so(cluster: Cluster, chain: Chains) -> None:
    job = chain("script", "40", "1", "exit:1:99")
    assert job.final() == "FAILED"
    assert job.results() == ["F", "F"]
    assert "giving up: 2 jobs in a row failed (limit 2), the last one with exit code 3" in job.log()


def test_a_cancelled_job_stays_cancelled(cluster: Cluster, chain: Chains) -> None:
    """Its ranks save and its launchers end as for a preemption, before Slurm's time is over."""
    job = chain("script", "400", "1")
    wait_until(lambda: job.saved() >= 3, 120, "step 3")
    (number,) = cluster.run("squeue", "--noheader", "--format=%i").split()
    cluster.run("scancel", number)
    assert job.final() == "CANCELLED"
    assert job.results() == ["C"]
    wait_until(lambda: not cluster.run("squeue", "--noheader"), 60, "no job to be left")


@pytest.mark.variant
def test_a_time_limit_goes_on_in_another_job(cluster: Cluster, chain: Chains) -> None:
    """A script without a preemption signal: at Slurm's own limit of a minute. NeMo-Run may take it for the end."""
    job = chain("minute", "900", "1")
    finished = "rank 0: finished at step 900"
    wait_until(lambda: any(finished in line for line in job.events()), 400, "the end, in a later job")
    wait_until(lambda: not cluster.run("squeue", "--noheader"), 60, "no job to be left")
    *earlier, last = job.results()  # one for each minute that the training took
    assert (set(earlier), last) == ({"P"}, "S")


# -- without Slurm, for those who change nothing: no plugin of ours, the training imports `nvidia_resiliency_ext`

TRAINING = Path(__file__).parents[2] / "compat" / "programs" / "shows_settings.py"

DRIVER = """
import sys
import nemo_run as run
from nemo_run.config import set_nemorun_home

set_nemorun_home(sys.argv[1])
launcher = run.FaultTolerance(
    max_restarts=2, initial_rank_heartbeat_timeout=61, rank_heartbeat_timeout=31,
    workload_check_interval=1, rank_termination_signal="SIGTERM", log_level="DEBUG", rdzv_port=0,
)
with run.Experiment("local", executor=run.LocalExecutor(ntasks_per_node=2, launcher=launcher)) as experiment:
    experiment.add(run.Script(path=sys.argv[2], args=[sys.argv[1]], entrypoint="python"), name="train")
    experiment.run(detach=False, tail_logs=True)
"""


def test_a_local_run_restarts_and_gets_its_limits(
    spawn: Spawner,
    tmp_path: Path,
    python: str,  # noqa: F811
) -> None:
    tools = Path(python).parent  # `ft_launcher` is the command of this environment
    run = spawn(
        [python, "-c", DRIVER, tmp_path, TRAINING],
        env={"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )
    assert run.wait(120) == 0, run.output()[-4000:]
    told = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("?-?.json")}
    assert told.keys() >= {"1-0", "0-1", "1-1"}, run.output()[-4000:]
    for module, settings, *_ in told.values():
        assert module == "holdfast.fault_tolerance.client"
        assert settings["initial_rank_heartbeat_timeout"] == 61.0
        assert settings["rank_heartbeat_timeout"] == 31.0
        assert settings["workload_check_interval"] == 1.0
        assert (settings["rank_termination_signal"], settings["log_level"]) == ("SIGTERM", "DEBUG")
    assert "[holdfast]" in run.output()
