"""The cluster that the other tests rely on: nodes with names, jobs over several of them, nodes that go and come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.slurm.cluster import REQUIRED, Cluster, missing
from tests.slurm.conftest import cluster_or_skip


def test_a_job_runs_on_several_nodes_that_know_each_other_by_name(cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "out"
    script = "srun bash -c 'getent hosts n1 n2; echo $SLURM_NODEID $(hostname)'"
    cluster.run("sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={output}", f"--wrap={script}")
    lines = output.read_text().splitlines()
    assert {"0 n1", "1 n2"} <= set(lines)
    assert {line.split()[0] for line in lines if line.endswith("n2") and "." in line} == {"127.0.1.2"}
    assert os.uname().nodename not in ("n1", "n2")


@pytest.mark.variant
def test_a_node_that_loses_its_power_goes_down_and_can_come_back(own_cluster: Cluster) -> None:
    cluster = own_cluster
    job = cluster.run("sbatch", "--parsable", "--requeue", "-wn3", "-o/dev/null", "--wrap=sleep 100").strip()
    wait_until(lambda: cluster.processes("n3"), 30, "the job to run on n3")
    cluster.kill_node("n3", with_its_processes=True)
    assert cluster.processes("n3") == []
    restarted = f"squeue -h -j {job} -o %r".split()
    wait_until(lambda: cluster.run(*restarted).strip() in ("NodeDown", "BeginTime"), 45, "the requeue")
    cluster.start_node("n3")
    cluster.clear()
    assert cluster.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle"] * 4


@pytest.mark.variant
def test_accounting_knows_how_a_job_ended(accounting_cluster: Cluster) -> None:
    job = accounting_cluster.run("sbatch", "--parsable", "-o/dev/null", "--wrap=exit 3").strip()
    words = ["sacct", "-nXP", "-j", job, "-o", "State,ExitCode"]
    wait_until(lambda: accounting_cluster.run(*words).strip() == "FAILED|3:0", 30, "sacct to know the end")


def test_without_slurm_tests_skip_with_the_reason_and_fail_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(REQUIRED, raising=False)
    reason = missing() or ""
    assert reason.startswith("no slurmctld, slurmd,") or os.geteuid() != 0
    with pytest.raises(pytest.skip.Exception) as skipped:
        next(cluster_or_skip())
    assert str(skipped.value) == reason
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception) as failed:
        next(cluster_or_skip())
    assert str(failed.value) == f"{REQUIRED}=1, but {reason}"
