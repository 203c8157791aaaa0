"""Metrics of a job of several nodes: each launcher has its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.launcher.test_metrics_table import Values, samples
from tests.nodes.conftest import TRAINS, Cluster, Node
from tests.processes import wait_until


def read(file: Path) -> Values:
    return samples(file.read_text()) if file.exists() else {}


def waits_for_one(file: Path) -> bool:
    return read(file)["holdfast_spare_nodes",] == 1


@pytest.mark.slow
def test_spare_and_members_show_who_waits(cluster: Cluster, tmp_path: Path) -> None:
    script = cluster.script(TRAINS)
    files = {name: tmp_path / f"{name}.prom" for name in "abc"}

    def launch(name: str) -> Node:
        return cluster.launch(name, script, f"--ft-metrics-file={files[name]}")

    a, b = launch("a"), launch("b")
    a.hear("trains", 0)
    c = launch("c")
    wait_until(lambda: read(files["c"]).get(("holdfast_job_state", "spare")))
    for name in "ab":
        wait_until(partial(waits_for_one, files[name]))
        assert read(files[name])["holdfast_job_state", "running"] == 1
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)
    for file in files.values():
        found = read(file)
        assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 0
