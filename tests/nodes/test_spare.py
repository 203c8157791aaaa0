"""More launchers than the job has places: the surplus waits, and leaves with the job."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from tests.launcher.test_metrics import Values, samples
from tests.nodes.conftest import Cluster
from tests.processes import wait_until

FAILS_ONCE = """
def save(number, frame):
    time.sleep(2.0)
    os._exit(0)
if CYCLE == 0 and NODE == "a":  # leaves later than a spare can come
    signal.signal(signal.SIGTERM, save)
for number in range(5):
    step(number)
say("trains")
if CYCLE == 0 and RANK == 3:
    until("fail")
    sys.exit(3)
until("finish")
"""


def metrics(cluster: Cluster, name: str) -> str:
    return f"--ft-metrics-file={cluster.folder}/{name}.prom"


def values(cluster: Cluster, name: str) -> Values:
    file = cluster.folder / f"{name}.prom"
    return samples(file.read_text()) if file.exists() else {}


def waits_for_one(cluster: Cluster, name: str) -> bool:
    return values(cluster, name)["holdfast_spare_nodes",] == 1


@pytest.mark.slow
def test_a_third_launcher_parks_and_leaves_with_the_job(cluster: Cluster) -> None:
    """And after a restart the nodes that trained before train again: what they keep on local disks is of use. A spare
    that leaves before disturbs no node. The metrics of each node show who waits."""
    script = cluster.script(FAILS_ONCE)
    a, b = (cluster.launch(name, script, metrics(cluster, name)) for name in "ab")
    a.hear("trains", 0)
    d = cluster.launch("d", script)
    d.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    c = cluster.launch("c", script, metrics(cluster, "c"))
    assert d.spawned.stop(signal.SIGTERM) == 0
    c.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    assert a.cycles() == b.cycles() == [0]
    wait_until(lambda: values(cluster, "c").get(("holdfast_job_state", "spare")))
    for name in "ab":
        wait_until(partial(waits_for_one, cluster, name))
        assert values(cluster, name)["holdfast_job_state", "running"] == 1
    cluster.tell("fail")
    assert a.hear("trains", 1) | b.hear("trains", 1) == {0, 1, 2, 3}
    c.spawned.wait_for(lambda: c.spawned.err().count("is a spare") == 2)
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)
    assert c.cycles() == [], "no rank of it was ever started"
    assert a.cycles() == b.cycles() == [0, 1]
    for name in "abc":
        found = values(cluster, name)
        assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 0


@pytest.mark.slow
def test_a_spare_leaves_with_a_job_that_fails(cluster: Cluster) -> None:
    script = cluster.script(FAILS_ONCE)
    a, b = (cluster.launch(name, script, restarts=0) for name in "ab")
    a.hear("trains", 0)
    c = cluster.launch("c", script)
    c.wait_for("is a spare")
    cluster.tell("fail")
    assert "no restart left (0 of 0 used)" in b.end(3)
    for node in a, c:
        assert "the job ends with exit code 3; reason from node" in node.end(3)
