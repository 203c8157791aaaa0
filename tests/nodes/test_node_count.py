"""Launchers of one job with different --nnodes: both sides say so, once; a real store."""

from __future__ import annotations

from torch.distributed import HashStore

from holdfast.fault_tolerance.launcher.nodes.node_count import NodeCount

AGAIN = "they may wait for each other in vain; give all launchers of a job the same"


def test_both_name_both_values() -> None:
    notes, a, b = HashStore(), NodeCount("a", 2, 2), NodeCount("b", 1, 3)
    assert a.compare(notes) is None and a.look(notes) is None
    assert b.compare(notes) == (f"node b was started with --nnodes 1:3, node a with --nnodes 2: {AGAIN}")
    assert a.look(notes) == f"node a was started with --nnodes 2, node b with --nnodes 1:3: {AGAIN}"


def test_it_is_said_once_and_by_those_two_only() -> None:
    notes = HashStore()
    a, b, c = NodeCount("a", 2, 2), NodeCount("b", 3, 3), NodeCount("c", 2, 2)
    found = [bool(node.compare(notes)) for node in (a, b, c)]
    assert found == [False, True, False]
    assert [bool(node.look(notes)) for node in (a, b, c, a)] == [True, False, False, False]


def test_the_same_number_is_no_matter() -> None:
    notes = HashStore()
    nodes = [NodeCount("a", 2, 2), NodeCount("b", 2, 2)]
    assert [node.compare(notes) for node in nodes] == [node.look(notes) for node in nodes] == [None, None]
