"""A rank of one node fails: all ranks of all nodes start again, in the same cycle, for one restart of the budget."""

from __future__ import annotations

import re

import pytest

from tests.nodes.conftest import Cluster

FAILS_ON_BOTH = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
for number in range(1, 6):
    step(number)
    client.heartbeat(step=number)
if (CYCLE, RANK) == (0, 3):
    os.kill(os.getpid(), signal.SIGKILL)
if (CYCLE, RANK) in [(1, 0), (2, 2)]:
    with client.section("reading"):
        wait()
if (CYCLE, RANK) == (3, 1):
    sys.exit(5)
while not told("finish"):
    number += 1
    step(number)
    client.heartbeat(step=number)
say("finished")
"""
"""Cycle by cycle: a rank of b dies, one of a hangs, one of b hangs, one of a exits with 5."""


@pytest.mark.slow
def test_a_rank_of_either_node_dies_or_hangs(either: Cluster) -> None:
    a, b = either.pair(FAILS_ON_BOTH, "--ft-rank-section-timeouts", "reading:0.7", restarts=4)
    assert a.hear("starts", 4) == {0, 1}
    assert b.hear("starts", 4) == {2, 3}
    either.tell("finish")
    said = a.end(0), b.end(0)
    for node in a, b:
        assert node.cycles() == [0, 1, 2, 3, 4], "the same cycles on both nodes"
        assert node.restarts() == [(1, 1), (2, 2), (3, 3), (4, 4)], "one count for the whole job"
    assert [each["rank"] for each in a.journal("verdict")] == [0]
    assert [each["rank"] for each in b.journal("verdict")] == [2]
    assert "FAILED: rank 3" in said[1] and "killed by SIGKILL" in said[1]
    assert "reason from node" in said[0] and "rank 3" in said[0], "the other node's launcher names it too"


BOTH_FAIL = """
say("is ready")
until(f"fail-{CYCLE}")
if LOCAL == 1:
    sys.exit(7)
wait()
"""


@pytest.mark.slow
def test_ranks_of_both_nodes_fail_in_the_same_moment(cluster: Cluster) -> None:
    """One restart is spent, not one each, and the nodes agree on who was first and how the job ends."""
    a, b = cluster.pair(BOTH_FAIL, restarts=1)
    for cycle in 0, 1:
        a.hear("is ready", cycle), b.hear("is ready", cycle)
        cluster.tell(f"fail-{cycle}")
    said = a.end(7), b.end(7)
    assert a.cycles() == b.cycles() == [0, 1]
    assert a.restarts() == b.restarts() == [(1, 1)]
    first = [re.findall(r"(?<!ALSO )FAILED: rank \d .*, cycle (\d)", words) for words in said]
    assert sorted(first[0] + first[1]) == ["0", "1"], (
        "in either cycle one node was first; the other one names it"
    )
    named = [words.count("reason from node") for words in said]
    assert [len(cycles) for cycles in first] == [2 - count for count in named]
