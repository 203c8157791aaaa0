"""`place`: which nodes take part, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.control.gathering import place
from holdfast.fault_tolerance.launcher.control.records import Member, Membership


def members(text: str) -> list[Member]:
    """`a b:2 c@rack1`: names, with a number after a colon and a domain after an at sign."""
    found = []
    for word in text.split():
        name, _, domain = word.partition("@")
        name, _, order = name.partition(":")
        found.append(Member(name, order=int(order or -1), domain=domain))
    return found


def names(nodes: tuple[Member, ...]) -> str:
    return " ".join(node.node for node in nodes)


@pytest.mark.parametrize(
    ("asked", "before", "most", "expected"),
    [
        ("node10 node2 node1", "", 3, "node1 node2 node10"),
        ("rack1-node10 rack1-node9 rack0-node11", "", 3, "rack0-node11 rack1-node9 rack1-node10"),
        ("a:2 b:0 c:1", "", 3, "b c a"),
        ("a c:7 b", "", 3, "c a b"),
        ("a b c d", "", 2, "a b"),
        ("c b a", "b c a", 3, "b c a"),
        ("a c spare", "a b c", 3, "a spare c"),
        ("a c", "a b c", 3, "a c"),
        ("spare1 c spare2", "a b c", 3, "spare1 spare2 c"),
        ("a b c new", "a b", 4, "a b c new"),
        ("spare a b c", "a b c", 3, "a b c"),
        ("spare:0 b:2", "a b", 2, "spare b"),
        ("", "a b", 2, ""),
    ],
)
def test_place_without_segments_keeps_places(asked: str, before: str, most: int, expected: str) -> None:
    previous = Membership(tuple(members(before))) if before else None
    assert names(place(members(asked), previous, most)) == expected


@pytest.mark.parametrize(
    ("asked", "before", "most", "expected"),
    [
        ("a1@a b1@b a2@a b2@b", "", 4, "a1 a2 b1 b2"),
        ("a1@a a2@a a3@a b1@b b2@b", "", 6, "a1 a2 b1 b2"),
        ("a1@a b1@b", "", 4, ""),
        ("b1@b b2@b a1@a a2@a", "b1@b b2@b a1@a a2@a", 4, "b1 b2 a1 a2"),
        ("b1@b a1@a a2@a b3@b", "b1@b b2@b a1@a a2@a", 4, "b1 b3 a1 a2"),
        ("b1@b a1@a a2@a c1@c c2@c", "b1@b b2@b a1@a a2@a", 4, "c1 c2 a1 a2"),
        ("b1@b a1@a a2@a", "b1@b b2@b a1@a a2@a", 4, "a1 a2"),
        ("a1@a a2@a b1@b b2@b", "", 3, "a1 a2"),
    ],
)
def test_place_with_segments_forms_complete_groups(asked: str, before: str, most: int, expected: str) -> None:
    """Groups of two nodes of one domain."""
    previous = Membership(tuple(members(before))) if before else None
    assert names(place(members(asked), previous, most, segment=2)) == expected


def test_place_puts_suspected_nodes_behind_the_spares() -> None:
    previous = Membership(tuple(members("a b c")))
    assert names(place(members("a b c spare"), previous, 3, behind=["b"])) == "a spare c"
    assert names(place(members("a b c"), previous, 3, behind=["b"])) == "a b c", "no other node is there"


NODES = st.lists(st.integers(0, 30), unique=True, max_size=12).map(
    lambda found: [f"n{each}" for each in found]
)


@given(NODES, NODES, st.integers(1, 12), st.sampled_from([0, 0, 2, 3]))
def test_place_never_drops_a_trained_node_for_a_new_one(
    asked: list[str], before: list[str], most: int, segment: int
) -> None:
    """Whatever the nodes, at most `most` are chosen, each once, and a place that is kept is kept in order."""
    domain = {0: "", 2: "one", 3: "one"}[segment]
    nodes = [Member(name, domain=domain) for name in asked]
    previous = Membership(tuple(Member(name, domain=domain) for name in before[:most])) if before else None
    chosen = [node.node for node in place(nodes, previous, most, segment=segment)]
    assert len(chosen) <= most
    assert len(set(chosen)) == len(chosen)
    assert not segment or len(chosen) % segment == 0
    trained = [name for name in before[:most] if name in asked]
    if not segment:
        assert [name for name in chosen if name in trained] == trained
        assert len(chosen) == min(len(asked), most)
