"""More launchers than the job has places: the surplus waits, and leaves with the job."""

from __future__ import annotations

import signal

import pytest

from tests.nodes.conftest import Cluster

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


@pytest.mark.slow
def test_a_third_launcher_parks_and_leaves_with_the_job(cluster: Cluster) -> None:
    """And after a restart the nodes that trained before train again: what they keep on local disks is of use. A spare
    that leaves before disturbs no node."""
    script = cluster.script(FAILS_ONCE)
    a, b = (cluster.launch(name, script) for name in "ab")
    a.hear("trains", 0)
    d = cluster.launch("d", script)
    d.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    c = cluster.launch("c", script)
    assert d.spawned.stop(signal.SIGTERM) == 0
    c.wait_for("is a spare: the job runs on 2 nodes, this one waits")
    assert a.cycles() == b.cycles() == [0]
    cluster.tell("fail")
    assert a.hear("trains", 1) | b.hear("trains", 1) == {0, 1, 2, 3}
    c.spawned.wait_for(lambda: c.spawned.err().count("is a spare") == 2)
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)
    assert c.cycles() == [], "no rank of it was ever started"
    assert a.cycles() == b.cycles() == [0, 1]


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
