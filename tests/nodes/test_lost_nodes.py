"""Nodes that a job loses: one vanishes while the others sit in a collective with its ranks, is sick, or suspect."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.incidents import Incident, incidents
from holdfast.journal.reader import read_run
from holdfast.views.job import read_job
from tests.cluster import QUICK, TRAINS, Cluster, HostNames, Network, Node, gone
from tests.processes import Spawner, wait_until

pytestmark = pytest.mark.slow

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


# -- nodes that are sick by their own checks, or suspect by past failures: a spare takes the place, or they stay

EXCLUDE = ["--ft-health-action", "exclude"]

FAILS_WHEN_TOLD = f"""
if NODE == "a" and LOCAL == 0 and CYCLE == 0:
    import threading
    def fail():
        until("fail")
        os._exit(3)
    threading.Thread(target=fail, daemon=True).start()
{TRAINS}"""


def sick_when_told(cluster: Cluster, name: str) -> list[str]:
    """A command that fails on this node once the test has said so."""
    file = cluster.notes / f"sick {name}"
    return [
        "--ft-health-command",
        f"if test -e '{file}'; then echo 'looking at card 3'; echo 'card 3 is loose'; exit 9; fi",
    ]


def finish(cluster: Cluster, *nodes: Node) -> None:
    cluster.tell("finish")
    for node in nodes:
        node.end(0)


def found(node: Node) -> list[dict[str, Any]]:
    return [event for event in node.journal("health") if event["check"] in ("command", "storage")]


def test_a_node_that_gets_sick_loses_its_place_to_a_spare(cluster: Cluster) -> None:
    script = cluster.script(FAILS_WHEN_TOLD)
    flags = ["--ft-node-health-check-interval", "1", "--ft-segment", "2"]
    a = cluster.launch("a", script, *flags)
    b = cluster.launch("b", script, *flags, *sick_when_told(cluster, "b"))
    a.hear("trains", 0), b.hear("trains", 0)
    a.wait_for("segment: the NVLink domain of this node is not known: all such nodes count as one domain")
    c = cluster.launch("c", script, *flags)
    c.wait_for("is a spare")
    cluster.tell("sick b")
    b.wait_for(r"health of this node: command: card 3 is loose \(sick\)")
    assert a.cycles() == b.cycles() == [0], "a finding while ranks train stops none"
    wait_until(lambda: "waiting/0" in json.dumps(a.journal("decision")), what="node 0 counts the spare")
    cluster.tell("fail")
    a.hear("trains", 1), c.hear("trains", 1)
    a.wait_for("node \\S+ is sick, node \\S+ takes its place: command: card 3 is loose")
    c.wait_for("node \\S+ is sick, it has no place: command: card 3 is loose")
    b.wait_for("has no place in cycle 1, since it is sick")
    finish(cluster, a, b, c)
    (event,) = a.journal("node_sick")
    assert (event["reason"], event["trains"]) == ("command: card 3 is loose", False)
    assert [event["text"] for event in found(b)] == ["command: card 3 is loose"] and not found(a)


def test_a_node_that_gets_sick_is_excluded_while_it_trains(cluster: Cluster) -> None:
    script = cluster.script(TRAINS)
    flags = [*EXCLUDE, "--ft-node-health-check-interval", "0.5"]
    a = cluster.launch("a", script, *flags, nnodes="1:2")
    b = cluster.launch("b", script, *flags, *sick_when_told(cluster, "b"), nnodes="1:2")
    a.hear("trains", 0), b.hear("trains", 0)
    cluster.tell("sick b")
    assert "is sick: command: card 3 is loose" in b.end(0)
    a.hear("trains", 1)
    a.wait_for("is sick, the others continue without it: command: card 3 is loose")
    finish(cluster, a)


# -- nodes that past failures make suspect -------------------------------------------------------------------


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


@pytest.mark.skipif(os.geteuid() != 0, reason="host names of their own need root")
def test_the_next_job_in_the_run_directory_begins_without_what_was_suspect(
    spawn: Spawner, tmp_path: Path
) -> None:
    cluster = Cluster(spawn, tmp_path, HostNames(a="machine-a", b="machine-b", c="machine-c"))
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
