"""What a rank may ask for: that its node is left out, or that the whole job ends."""

from __future__ import annotations

import pytest

from tests.nodes.conftest import Cluster

ASKS = """
from holdfast.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest
client = RankMonitorClient()
client.init_workload_monitoring()
step(1)
if CYCLE == 0 and NODE == "{node}" and LOCAL == 1:
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.{action}, "a sick GPU"))
if CYCLE == 0:
    wait()
until("finish")
"""


@pytest.mark.slow
def test_the_others_carry_on_without_an_excluded_node(cluster: Cluster) -> None:
    a, b = cluster.pair(ASKS.format(node="b", action="ExcludeThisNode"), nnodes="1:2")
    said = b.end(0)
    assert "leaves the job: rank 3" in said and "a sick GPU" in said
    assert a.hear("starts on a in 2", 1) == {0, 1}
    cluster.tell("finish")
    a.end(0)
    assert a.restarts() == [(1, 0)], "no restart of the budget is spent"


@pytest.mark.slow
def test_an_excluded_node_that_hosts_the_rendezvous_stays_for_it(cluster: Cluster) -> None:
    a, b = cluster.pair(ASKS.format(node="a", action="ExcludeThisNode"), nnodes="1:2")
    a.wait_for("continues to host the rendezvous, without ranks")
    assert b.hear("starts on b in 2", 1) == {0, 1}
    assert a.ranks() == []
    cluster.tell("finish")
    b.end(0), a.end(0)
    assert a.cycles() == [0] and b.cycles() == [0, 1]


@pytest.mark.slow
def test_an_excluded_host_does_not_stay_for_nobody(cluster: Cluster) -> None:
    a, b = cluster.pair(ASKS.format(node="a", action="ExcludeThisNode"), nnodes="1:2", node_timeout=1)
    b.hear("starts on b in 2", 1)
    b.vanish()
    assert "so it no longer hosts the rendezvous" in a.end(0)


@pytest.mark.slow
def test_a_shutdown_ends_everything_with_93_and_no_restart(cluster: Cluster) -> None:
    script = cluster.script(ASKS.format(node="b", action="ShutdownWorkload"))
    a, b = (cluster.launch(name, script) for name in "ab")
    assert "shutting the whole job down: rank 3" in b.end(93)
    assert "the job ends with exit code 93" in a.end(93)
    assert a.cycles() == b.cycles() == [0]
