"""Jobs on two nodes, of which one is asked to stop: all ranks of both stop after the same batch."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.nodes.conftest import Cluster, Node
from tests.processes import Spawner

from .ranks import TRAINS
from .slow_proxy import slow_proxy

SLOW = 0.1  # seconds that the store is away, in each direction


@pytest.fixture
def cluster(spawn: Spawner, tmp_path: Path) -> Cluster:
    """As in the tests of several nodes."""
    return Cluster(spawn, tmp_path)


def stopped_at(*nodes: Node) -> dict[int, int]:
    """Rank -> the batch that it stopped after."""
    found = [
        re.findall(r"^rank (\d+) cycle 0 stopped after (\d+) wanted True", node.spawned.out(), re.MULTILINE)
        for node in nodes
    ]
    return {int(rank): int(batch) for each in found for rank, batch in each}


@pytest.mark.slow
def test_ranks_of_both_nodes_stop_at_one_batch_by_a_slow_store(cluster: Cluster) -> None:
    """1 ms steps, 200 ms for an answer of the store; only the node that does not lead gets the signal."""
    script = cluster.script(TRAINS + "train()")
    a = cluster.launch("a", script, "--term-timeout", "60", env={"OMP_NUM_THREADS": "1"})
    host = cluster.port
    with slow_proxy(host, SLOW) as cluster.port:
        b = cluster.launch("b", script, "--term-timeout", "60", env={"OMP_NUM_THREADS": "1"})
        a.hear("trains", 0)
        b.hear("trains", 0)
        b.spawned.send_signal(signal.SIGTERM)
        said_b = b.end(0)
        said_a = a.end(0)
    batches = stopped_at(a, b)
    assert set(batches) == {0, 1, 2, 3} and len(set(batches.values())) == 1
    for said in (said_a, said_b):
        assert f"all ranks stop after batch {batches[0]}" in said and "FAILED" not in said
    assert "node " in said_a and "received a stop signal (SIGTERM): stopping all ranks" in said_a
    assert "Received Signals.SIGTERM death signal" in said_b
    records = [node.journal("stop_agreed")[0] for node in (a, b)]
    assert [record["place"] for record in records] == [f"after batch {batches[0]}"] * 2
