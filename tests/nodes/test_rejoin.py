"""A launcher dies alone, or leaves while it waits, and is started again."""

from __future__ import annotations

import signal
import socket

import pytest

from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.nodes.conftest import QUICK, TRAINS, Cluster, gone

LINKED = """
import socket
for number in range(3):
    step(number)
end = socket.socket(socket.AF_UNIX)
if RANK == 0:  # a connection between the nodes, as they have in a collective
    end.bind(f"notes/{CYCLE}")
    end.listen()
    end = end.accept()[0]
while RANK == 2 and end.connect_ex(f"notes/{CYCLE}"):
    time.sleep(0.01)
say("trains")
if RANK == 0 and not end.recv(1) and not told("finish"):
    raise RuntimeError("Connection closed by peer")  # as gloo has it
until("finish")
"""


@pytest.mark.slow
def test_a_launcher_that_was_killed_and_started_again_rejoins(cluster: Cluster) -> None:
    """Lost connections are the only sign of the death; the journal still has whose they were."""
    script = cluster.script(LINKED)
    a, b = (cluster.launch(name, script) for name in "ab")
    a.hear("trains", 0), b.hear("trains", 0)
    ranks = b.ranks()
    b.spawned.stop(signal.SIGKILL)
    a.wait_for("restarting all 2 local ranks")
    again = cluster.launch("b", script)
    assert a.hear("trains", 1) | again.hear("trains", 1) == {0, 1, 2, 3}
    assert all(gone(rank) for rank in ranks), "its monitor ended what it left"
    cluster.tell("finish")
    a.end(0), again.end(0)
    assert a.restarts() == [(1, 1)]
    assert again.cycles() == [1]
    (incident,) = incidents(read_run(str(a.run_dir)))
    assert (incident.kind, incident.node) == ("node lost", f"{socket.gethostname()}:{b.pid}")
    assert "rank 0 failed: RuntimeError" in incident.what


@pytest.mark.slow
def test_launchers_that_leave_or_die_while_they_wait_are_not_counted(cluster: Cluster) -> None:
    """One that is asked to leave writes so, and is not waited for. One that dies does not acknowledge the membership;
    no restart is used, as no rank had started."""
    script = cluster.script(TRAINS)
    a, b = (cluster.launch(name, script, nnodes="3", node_timeout=QUICK) for name in "ab")
    b.wait_for("waits for other nodes to join cycle 0")
    assert b.spawned.stop(signal.SIGTERM) == 0
    c = cluster.launch("c", script, nnodes="3", node_timeout=QUICK)
    c.wait_for("waits for other nodes to join cycle 0")
    assert "did not answer" not in a.spawned.err(), "no node had to wait for b"
    c.spawned.stop(signal.SIGKILL)
    d, e = (cluster.launch(name, script, nnodes="3", node_timeout=QUICK) for name in "de")
    ranks = a.hear("trains", 1) | d.hear("trains", 1) | e.hear("trains", 1)
    assert ranks == {0, 1, 2, 3, 4, 5}
    assert any(" of cycle 0 did not answer" in node.spawned.err() for node in (a, d, e))
    cluster.tell("finish")
    for node in a, d, e:
        node.end(0)
        assert node.cycles() == [1]
        assert node.restarts() == []
