"""A whole node vanishes while the ranks of the others sit in a collective with its ranks."""

from __future__ import annotations

import re
import time

import pytest

from holdfast.journal.incidents import Incident, incidents
from holdfast.journal.reader import read_run
from holdfast.views.job import read_job
from tests.nodes.conftest import QUICK, TRAINS, Cluster, Network, Node, gone

ALL_REDUCES = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
total, number = torch.zeros(1), 0
while not total.item():  # all leave at the same step
    number += 1
    dist.all_reduce(total.fill_(told("finish")))
    if number == 3:
        say("trains")
    time.sleep(0.02)
say("finished")
"""


@pytest.mark.slow
def test_noticed_by_its_silence_and_a_spare_takes_over(networked: Cluster, network: Network) -> None:
    """The cable is pulled first, so nothing tells the others: real all-reduces wait, and the limit is the default."""
    script = networked.script(ALL_REDUCES)
    a, b = (networked.launch(name, script, node_timeout=None) for name in "ab")
    a.hear("trains", 0)
    c = networked.launch("c", script, node_timeout=None)
    c.wait_for("is a spare: the job runs on 2 nodes")
    network.unplug("b")
    b.vanish()
    lost = a.wait_for(r"NODE LOST: node .* is gone: no sign of it for ([\d.]+) s")
    assert float(lost[1]) < 30.0  # 15 s are promised, on a machine that is not as busy as one that runs tests
    assert a.hear("trains", 1) | c.hear("trains", 1) == {0, 1, 2, 3}
    networked.tell("finish")
    a.end(0), c.end(0)
    assert a.restarts() == [(1, 1)]


@pytest.mark.slow
def test_the_rest_carry_on_alone_where_that_is_allowed(cluster: Cluster) -> None:
    """At once: no other node is expected, so there is no last call to wait out (two minutes here)."""
    a, b = cluster.pair(TRAINS, nnodes="1:2", conf="last_call_timeout=120", node_timeout=QUICK)
    a.hear("trains", 0)
    b.vanish()
    a.wait_for("NODE LOST")
    a.hear("starts on a in 2", 1)
    cluster.tell("finish")
    a.end(0)
    assert a.restarts() == [(1, 1)]
    ledger = read_job(str(a.run_dir), time.time()).ledger
    assert ledger and ledger.by_kind == {"node lost": 1}


GAVE_UP = "timed out waiting for the other nodes (rendezvous timeout)"


@pytest.mark.slow
def test_with_a_fixed_number_the_rest_wait_and_say_so_and_give_up_at_last(cluster: Cluster) -> None:
    a, b = cluster.pair(TRAINS, nnodes="2", conf="join_timeout=8", node_timeout=QUICK)
    a.hear("trains", 0)
    b.vanish()
    a.wait_for("NODE LOST")
    a.wait_for("waits for other nodes to join cycle 1: 2 needed; timeout 8 s")
    assert GAVE_UP in a.end(1)
    assert "cycle 1" not in a.spawned.out(), "no rank of a started alone"
    lost, gave_up = _incidents(a)
    assert lost.kind == "node lost"
    assert gave_up.kind == "job lost"
    assert gave_up.what == f"{GAVE_UP}: no sign of node {lost.node}"


FINISHES_ALONE = """
if NODE == "a" and CYCLE == 0:
    say("finished")
    sys.exit(0)
until("finish")
"""


@pytest.mark.slow
def test_a_node_that_has_finished_still_watches_the_others(cluster: Cluster) -> None:
    """What the vanished ranks had yet to do is not done: all start again. With less to go by, it takes longer."""
    a, b = cluster.pair(FINISHES_ALONE, nnodes="1:2", node_timeout=QUICK)
    a.hear("finished", 0)
    b.hear("starts", 0)
    a.spawned.wait_for(lambda: not a.ranks())
    b.vanish()
    a.hear("starts on a in 2", 1)
    cluster.tell("finish")
    a.end(0)
    assert a.restarts() == [(1, 1)]


def _incidents(node: Node) -> list[Incident]:
    return incidents(read_run(str(node.run_dir)))


def _say_so_and_stop(node: Node, how_we_know: str) -> None:
    ranks = node.ranks()
    said = node.end(1)
    assert "the node that hosts the rendezvous is gone" in said
    assert "Start the job again" in said
    assert all(gone(rank) for rank in ranks)
    (incident,) = _incidents(node)
    assert incident.kind == "node lost"
    assert re.search(
        f"the node that hosts the rendezvous at {incident.node} is gone: {how_we_know}", incident.what
    )


@pytest.mark.slow
def test_the_host_vanishes_without_a_word(networked: Cluster, network: Network) -> None:
    """No packet tells of it, while one node trains and a spare waits: both find out and leave."""
    script = networked.script(TRAINS)
    a, b = (networked.launch(name, script, node_timeout=QUICK) for name in "ab")
    b.hear("trains", 0)
    c = networked.launch("c", script, node_timeout=QUICK)
    c.wait_for("is a spare")
    network.unplug("a")
    a.vanish()
    _say_so_and_stop(b, rf"10\.77\.0\.1:{networked.port} has not answered for \d+ s")
    assert "the node that hosts the rendezvous is gone" in c.end(1)
