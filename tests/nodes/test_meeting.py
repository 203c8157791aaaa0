"""What launchers log while they look for each other: the address that they try to reach, and contradictions."""

from __future__ import annotations

import signal

import pytest

from tests.nodes.conftest import Cluster


def test_a_node_that_reaches_nobody_says_where_it_tries_and_leaves_when_told(cluster: Cluster) -> None:
    b = cluster.launch("b", cluster.script('say("started")'))
    where = rf"localhost:{cluster.port} \(check that node 0 is up, the address and the port\)"
    b.wait_for(rf"node \S+:{b.pid} tries to reach the rendezvous store at {where}$")
    assert b.spawned.stop(signal.SIGTERM) == 0
    assert b.spawned.err().count("tries to reach") == 1 and not b.spawned.out()


@pytest.mark.slow
def test_both_launchers_say_that_they_were_given_different_numbers_of_nodes(cluster: Cluster) -> None:
    script = cluster.script('say("started")')
    a = cluster.launch("a", script, nnodes="2")
    a.wait_for("waits for other nodes")
    b = cluster.launch("b", script, nnodes="3")
    b.wait_for(
        rf"node \S+:{b.pid} was started with --nnodes 3, node \S+:{a.pid} with --nnodes 2: the job may never"
    )
    a.wait_for(
        rf"node \S+:{a.pid} was started with --nnodes 2, node \S+:{b.pid} with --nnodes 3: the job may never"
    )
    for node in b, a:
        node.spawned.stop(signal.SIGTERM)
        assert node.spawned.err().count("was started with") == 1
