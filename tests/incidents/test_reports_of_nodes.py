"""One report names one culprit of a job of several nodes, whichever node's limit passed first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nodes.conftest import Cluster
from tests.nodes.conftest import cluster as cluster

TRAINING = """
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
dist.init_process_group("gloo")
for step in range(8):
    client.heartbeat(step)
    if CYCLE == 0 and RANK == 2 and step == 5:
        client.heartbeat(step)
        time.sleep(1.0)
        client.heartbeat(step)
        deep_sleep = time.sleep(600)
    with client.section("step"):
        dist.all_reduce(torch.ones(8))
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
"""
"""Rank 2, on the second node, hangs; the others' limits pass a second before its own."""


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one run directory", "a run directory each"])
def test_the_culprit_of_another_node_is_named(cluster: Cluster, shared: bool, tmp_path: Path) -> None:
    flags = ["--ft-rank-heartbeat-timeout", "3"]
    flags += ["--ft-run-dir", str(tmp_path / "shared")] if shared else []
    # Two launchers of one machine have one name; reports tell nodes apart by it.
    nodes = cluster.pair(TRAINING, *flags)
    for node in nodes:
        node.end(0)
    folders = [tmp_path / "shared"] if shared else [node.run_dir for node in nodes]
    found = [path for folder in folders for path in folder.glob("incidents/*/incident.json")]
    assert len(found) == 1, "one node makes the report"
    record = json.loads(found[0].read_text())
    verdict = record["verdict"]
    assert len(record["nodes"]) == 2
    assert verdict["rank"] == 2, verdict
    assert verdict["kind"] == "user_code", verdict
    (culprit,) = [rank for node in record["nodes"] for rank in node["ranks"] if rank["rank"] == 2]
    assert culprit["stacks"], "its stack was asked for before it was stopped"
    # In full where the run directory is shared, else what fits into the store.
    of_node_1 = [rank for node in record["nodes"] for rank in node["ranks"] if node["node_rank"] == 1]
    for rank in of_node_1 if shared else ():
        assert (
            rank["board"]["events"]
            and len(rank["process"]["threads"]) > 1
            and len(rank["process"]["children"]) == 1
        )
    assert culprit["board"]["rhythm"] >= 1.0
    starts = [node["cycle_start"] for node in record["nodes"]]
    assert all(0 < node["at"] - node["cycle_start"] < 120 for node in record["nodes"])
    assert abs(starts[0] - starts[1]) < 5.0, "the launchers begin a cycle together"
    report = (found[0].parent / "report.txt").read_text()
    assert "rank 2" in report.splitlines()[0]
    fragments = sorted(path.name for path in found[0].parent.glob("fragment-*.json"))
    assert len(fragments) == (2 if shared else 1)
