"""Nodes whose own checks find them sick: a spare takes the place, or they train with a warning, or they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.conftest import TRAINS, Cluster, Node
from tests.processes import wait_until

pytestmark = pytest.mark.slow

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
    flags = ["--ft-node-health-check-interval", "1"]
    a = cluster.launch("a", script, *flags)
    b = cluster.launch("b", script, *flags, *sick_when_told(cluster, "b"))
    a.hear("trains", 0), b.hear("trains", 0)
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


def test_with_a_spare_at_the_start_a_sick_node_has_no_place(cluster: Cluster) -> None:
    script = cluster.script(TRAINS)
    cluster.tell("sick b")
    conf = {"conf": "last_call_timeout=60", "nnodes": "2:3"}
    a = cluster.launch("a", script, *EXCLUDE, **conf)
    b = cluster.launch("b", script, *EXCLUDE, *sick_when_told(cluster, "b"), **conf)
    b.wait_for("journal in")
    c = cluster.launch("c", script, *EXCLUDE, **conf)
    a.hear("trains", 0), c.hear("trains", 0)
    assert "is sick: command: card 3 is loose" in b.end(0)
    assert b.cycles() == []
    finish(cluster, a, c)


def test_a_sick_node_stays_where_it_is_needed(cluster: Cluster) -> None:
    """Also a job whose nodes are all sick begins; and at once, as all its nodes are there."""
    script = cluster.script(TRAINS)
    cluster.tell("sick a"), cluster.tell("sick b")
    flags, conf = [*EXCLUDE, "--ft-segment", "2"], "last_call_timeout=600"
    nodes = [cluster.launch(name, script, *flags, *sick_when_told(cluster, name), conf=conf) for name in "ab"]
    for node in nodes:
        node.hear("trains", 0)
        node.wait_for("is sick, it trains, as no other node waits for its place: command: card 3 is loose")
    nodes[0].wait_for(
        "segment: the NVLink domain of this node is not known: all such nodes count as one domain"
    )
    finish(cluster, *nodes)
    assert [event["trains"] for event in nodes[0].journal("node_sick")] == [True, True]


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


def test_a_restart_with_the_same_nodes_checks_nothing(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "checks"
    command = ["--ft-health-command", f"echo check >> '{log}'", "--ft-node-health-check-interval", "1000"]
    script = cluster.script(FAILS_WHEN_TOLD)
    a, b = (cluster.launch(name, script, *command) for name in "ab")
    a.hear("trains", 0)
    cluster.tell("fail")
    a.hear("trains", 1), b.hear("trains", 1)
    finish(cluster, a, b)
    assert log.read_text().split() == ["check", "check"]
    assert json.dumps(a.journal("health")) == "[]"
