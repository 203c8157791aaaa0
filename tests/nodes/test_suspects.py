"""Nodes that past failures make suspect: a spare takes the place, or the others continue without it."""

from __future__ import annotations

import pytest

from tests.nodes.conftest import TRAINS, Cluster, Node

pytestmark = pytest.mark.slow

ECC = "CUDA error: uncorrectable ECC error encountered"
BREAKS = f"""
if NODE == "b":
    until(f"break {{CYCLE}}")
    if LOCAL == 0:
        HOW
    wait()
{TRAINS}"""
"""Node b breaks in each cycle that it takes part in, as soon as it is told to."""

RAISES = BREAKS.replace("HOW", f'raise RuntimeError("{ECC}")')
CRASHES = BREAKS.replace("HOW", "os.kill(os.getpid(), signal.SIGSEGV)")
BUG = BREAKS.replace("HOW", 'raise IndexError("index 7 is out of range")')


def with_spare(cluster: Cluster, text: str) -> tuple[Node, Node, Node]:
    script = cluster.script(text)
    a, b = (cluster.launch(name, script, restarts=6) for name in "ab")
    a.hear("starts", 0)
    c = cluster.launch("c", script, restarts=6)
    c.wait_for("is a spare")
    return a, b, c


def break_cycle(cluster: Cluster, cycle: int, *nodes: Node) -> None:
    """Let node b fail in this cycle, and wait until its failure is judged."""
    for node in nodes:
        node.hear("starts", cycle)
    cluster.tell(f"break {cycle}")
    nodes[-1].wait_for(f"(verdict|report) on cycle {cycle}")


def test_a_spare_takes_the_place_of_a_node_with_broken_memory(cluster: Cluster) -> None:
    a, b, c = with_spare(cluster, RAISES)
    break_cycle(cluster, 0, a, b)
    break_cycle(cluster, 1, a, b)
    a.hear("trains", 2), c.hear("trains", 2)
    a.wait_for("node \\S+ is suspect: node \\S+ takes its place")
    b.wait_for("is a spare")
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)
    assert not b.cycles()[2:]
    (found,) = a.journal("node_suspected")
    assert (
        ECC in found["facts"] and not found["stays"] and found["instead"] == c.journal("run_start")[0]["node"]
    )


def test_the_host_of_the_rendezvous_can_lose_its_place_too(cluster: Cluster) -> None:
    a, b, c = with_spare(cluster, RAISES.replace('NODE == "b"', 'NODE == "a"'))
    for cycle in range(2):
        break_cycle(cluster, cycle, b, a)
    b.hear("trains", 2), c.hear("trains", 2)
    a.wait_for("is a spare")
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)


def test_a_spare_takes_the_place_of_a_node_that_crashes_twice(cluster: Cluster) -> None:
    a, b, c = with_spare(cluster, CRASHES)
    for cycle in range(3):
        break_cycle(cluster, cycle, a, b)
    a.hear("trains", 3), c.hear("trains", 3)
    b.wait_for("is accused by 2 of the last 2 failures")
    cluster.tell("finish")
    for node in a, b, c:
        node.end(0)


TWO_BREAK = BREAKS.replace('NODE == "b"', 'NODE in "bc" and CYCLE % 2 == "bc".index(NODE)').replace(
    "HOW",
    """raise OSError(5, "Input/output error", "/data/shard-7") if NODE == "b" else os.kill(os.getpid(), 11)""",
)
"""By turns: the disk of b fails, and c crashes."""


def test_spares_take_the_places_of_two_nodes_of_four(cluster: Cluster) -> None:
    script = cluster.script(TWO_BREAK)
    nodes = [cluster.launch(name, script, nnodes="4", restarts=9) for name in "abcd"]
    for node in nodes:
        node.hear("starts", 0)
    spares = [cluster.launch(name, script, nnodes="4", restarts=9) for name in "ef"]
    for spare in spares:
        spare.wait_for("is a spare")
    a, b, c, d = nodes
    for cycle in range(9):
        a.hear("starts", cycle)
        if all(cycle in node.cycles() for node in spares):
            break
        cluster.tell(f"break {cycle}")
        a.hear("starts", cycle + 1)
    assert cycle <= 6 and {*a.cycles()} == {*d.cycles()} == {*range(cycle + 1)}
    for node in a, d, *spares:
        node.hear("trains", cycle)
    assert cycle not in b.cycles() and cycle not in c.cycles()
    cluster.tell("finish")
    for node in nodes + spares:
        node.end(0)


def test_a_bug_moves_no_node(cluster: Cluster) -> None:
    a, b, c = with_spare(cluster, BUG)
    for cycle in range(3):
        break_cycle(cluster, cycle, a, b)
    a.hear("starts", 3), b.hear("starts", 3)
    cluster.tell("finish"), cluster.tell("break 3")
    assert not a.journal("node_suspected") and not b.journal("node_suspected")
    for node in a, b, c:
        node.spawned.send_signal(15)
        node.spawned.wait()


def test_a_suspected_node_stays_where_no_other_waits(cluster: Cluster) -> None:
    a, b = cluster.pair(RAISES, restarts=2)
    for cycle in range(2):
        break_cycle(cluster, cycle, a, b)
    a.hear("starts", 2), b.hear("starts", 2)
    b.wait_for("suspect: ")
    cluster.tell("break 2")
    a.end(1), b.end(1)
    assert b.journal("node_suspected") and not a.journal("node_replaced")


def test_the_others_continue_without_a_suspected_node(cluster: Cluster) -> None:
    flags = ["--ft-exclude-suspects", "--ft-node-domain", "rack 7"]
    a, b = cluster.pair(RAISES, *flags, nnodes="1:2", restarts=6)
    for cycle in range(2):
        break_cycle(cluster, cycle, a, b)
    a.hear("trains", 2)
    a.wait_for("the others continue without it")
    assert not b.cycles()[2:]
    cluster.tell("finish")
    a.end(0), b.end(0)
