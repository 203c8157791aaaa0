"""Nodes that past failures make suspect: a spare takes the place, or the others continue without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nodes.conftest import TRAINS, Cluster, Node
from tests.processes import Spawner, wait_until

pytestmark = pytest.mark.slow

ECC = "CUDA error: uncorrectable ECC error encountered"
BREAKS = f"""
if NODE in "BAD":
    until(f"{{NODE}} breaks {{CYCLE}}")
    if LOCAL == 0:
        HOW
    wait()
{TRAINS}"""
"""These nodes break in each cycle that they take part in, on the test's request."""

RAISES = f'raise RuntimeError("{ECC}")'


def program(how: str, bad: str = "b") -> str:
    return BREAKS.replace("BAD", bad).replace("HOW", how)


def with_spare(cluster: Cluster, text: str) -> tuple[Node, Node, Node]:
    script = cluster.script(text)
    a, b = (cluster.launch(name, script, restarts=6) for name in "ab")
    a.hear("starts", 0)
    c = cluster.launch("c", script, restarts=6)
    c.wait_for("is a spare")
    return a, b, c


def break_until(cluster: Cluster, nodes: list[Node], bad: list[Node], count: int, most: int) -> int:
    """Let the bad nodes that take part break, one in each cycle, until none of them does; returns that cycle.

    A spare that has just come is counted after a second or so, so it may take one cycle more.
    """
    for cycle in range(most + 1):

        def members(cycle: int = cycle) -> list[Node] | None:
            found = [node for node in nodes if cycle in node.cycles()]
            return found if len(found) == count else None

        found = wait_until(members, what=f"{count} nodes in cycle {cycle}")
        for node in found:
            node.hear("starts", cycle)
        ill = [node for node in bad if node in found]
        if not ill:
            return cycle
        cluster.tell(f"{ill[0].name} breaks {cycle}")
        ill[0].wait_for(f"(verdict|report) on cycle {cycle}")
    raise AssertionError(f"a bad node still takes part in cycle {most}")


def finish(cluster: Cluster, *nodes: Node) -> None:
    cluster.tell("finish")
    for node in nodes:
        node.end(0)


def test_a_spare_takes_the_place_of_a_node_with_broken_memory(cluster: Cluster) -> None:
    a, b, c = with_spare(cluster, program(RAISES))
    cycle = break_until(cluster, [a, b, c], [b], 2, most=3)
    a.hear("trains", cycle), c.hear("trains", cycle)
    a.wait_for("node \\S+ is suspect: node \\S+ takes its place")
    b.wait_for(f"suspect: node \\S+: RuntimeError: {ECC}")
    b.wait_for(f"has no place in cycle {cycle}, since it is suspect")
    finish(cluster, a, b, c)
    (found,) = a.journal("node_replaced")
    assert (found["cycle"], found["instead"]) == (cycle - 1, c.journal("run_start")[0]["node"])
    assert all(ECC in each["facts"] for each in b.journal("node_suspected"))


def test_a_suspected_node_is_named_and_stays_where_no_other_waits(cluster: Cluster) -> None:
    a, b = cluster.pair(program(RAISES), restarts=2)
    with pytest.raises(AssertionError, match="still takes part"):
        break_until(cluster, [a, b], [b], 2, most=2)
    a.end(1), b.end(1)
    assert b.journal("node_suspected") and not a.journal("node_replaced")


def test_the_others_continue_without_a_suspected_node(cluster: Cluster) -> None:
    both = {"nnodes": "1:2", "restarts": 6, "conf": "last_call_timeout=60"}
    a, b = cluster.pair(program(RAISES), "--ft-exclude-suspects", **both)
    for cycle in range(3):  # the report may come late once

        def begun(cycle: int = cycle) -> bool:
            return cycle in b.cycles() or "the others continue without it" in a.spawned.err()

        a.hear("starts", cycle)
        wait_until(begun, what=f"cycle {cycle} with or without node b")
        if cycle not in b.cycles():
            break
        b.hear("starts", cycle)
        cluster.tell(f"b breaks {cycle}")
        b.wait_for(f"report on cycle {cycle}")
    a.hear("trains", cycle)
    assert cycle in (1, 2) and cycle not in b.cycles()
    finish(cluster, a, b)


def test_a_spare_is_used_though_each_cycle_is_short(cluster: Cluster) -> None:
    """Node b fails at once, so node 0 has no time to count the nodes that wait."""
    text = f"if NODE == 'b':\n    until('go')\n    {RAISES}\n{TRAINS}"
    script = cluster.script(text)
    a, b = (cluster.launch(name, script, restarts=200) for name in "ab")
    a.hear("starts", 0), b.hear("starts", 0)
    c = cluster.launch("c", script, restarts=200)
    c.wait_for("journal in")
    cluster.tell("go")
    wait_until(lambda: c.cycles(), what="a cycle with node c")
    c.hear("trains", c.cycles()[-1])
    finish(cluster, a, b, c)


class Machines:
    """Launchers that each see a host name of their own."""

    def address(self, name: str) -> str:
        return "localhost"

    def inside(self, name: str) -> list[str]:
        return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"machine-{name}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="host names of their own need root")
def test_the_next_job_in_the_run_directory_begins_without_what_was_suspect(
    spawn: Spawner, tmp_path: Path
) -> None:
    cluster = Cluster(spawn, tmp_path, Machines())  # type: ignore[arg-type]
    shared = ("--ft-run-dir", str(tmp_path / "shared"))
    a, b = cluster.pair(program(RAISES), *shared, restarts=0)
    for node in a, b:
        node.hear("starts", 0)
    cluster.tell("b breaks 0")
    b.wait_for(f"suspect: node machine-b:\\d+: RuntimeError: {ECC}")
    for node in a, b:
        node.end(1)
    (cluster.notes / "b breaks 0").unlink()

    script = cluster.script(program(RAISES))
    a, b, c = (cluster.launch(name, script, *shared) for name in "abc")
    a.hear("trains", 0), c.hear("trains", 0)
    b.wait_for("has no place in cycle 0, since it is suspect|is a spare")
    finish(cluster, a, b, c)
