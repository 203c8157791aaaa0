"""Two nodes that do not end an exchange between them: both are named, and neither is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.incident_report import Summary, judged_failure
from holdfast.incidents.evidence import Case, Collective
from holdfast.incidents.report.text import report_lines
from holdfast.incidents.rules import judge as judgement
from tests.incidents.cases import entry, judge, limit, node, rank

Entries = dict[int, list[Collective]]


def nccl(operation: str, state: str = "started", sequence: int = 7, **changes: Any) -> Collective:
    return entry(sequence, f"nccl:{operation}", state=state, backend="nccl", **changes)


def transfer(operation: str, peer: int, state: str = "started") -> Collective:
    return nccl(operation, state, p2p=True, peer=peer, group="pp")


def of_all(state: str = "scheduled", sequence: int = 7) -> Collective:
    return nccl("all_reduce", state, sequence, members=(0, 1, 2, 3))


def of_two(state: str = "started", sequence: int = 7) -> Collective:
    return nccl("all_gather", state, sequence, members=(1, 2), group="dp")


def two_nodes(entries: Entries, **changes: Any) -> Case:
    """Ranks 0 and 1 on node a, 2 and 3 on node b."""
    done = of_all("completed", 6)
    ranks = [rank(number, collectives=(done, *entries[number])) for number in range(4)]
    ranks[0] = replace(ranks[0], passed=limit())
    more = {"nodes": 2, "world_size": 4, **changes}
    return Case((node(*ranks[:2], **more), node(*ranks[2:], name="b", node_rank=1, **more)))


def neighbours(state: str = "started") -> Entries:
    """A pipeline of four stages: 1 and 2 are in one exchange, and their neighbours wait for them."""
    return {
        0: [transfer("send", 1)],
        1: [transfer("send", 2)],
        2: [transfer("recv", 1, state)],
        3: [transfer("recv", 2)],
    }


PAIRS: dict[str, Entries] = {
    "a send and a receive": neighbours(),
    "all others in a collective": {
        **neighbours(),
        0: [of_all("started")],
        3: [of_all("started")],
    },
    "a receive behind the send": {
        **neighbours(),
        1: [transfer("send", 2), replace(transfer("recv", 2, "scheduled"), sequence=8)],
    },
    "a collective of two": {0: [of_all()], 1: [of_two()], 2: [of_two()], 3: [of_all()]},
}
NO_PAIRS: dict[str, Entries] = {
    "the other end has not started": neighbours("scheduled"),
    "the other end is elsewhere": {**neighbours(), 2: [of_two()]},
    "one end waits for a third rank": {**neighbours(), 2: [transfer("recv", 1), transfer("send", 3)]},
    "two pairs": {
        0: [transfer("send", 3)],
        1: [transfer("send", 2)],
        2: [transfer("recv", 1)],
        3: [transfer("recv", 0)],
    },
    "a third rank has not come": {**neighbours(), 0: [of_all("started")], 3: [transfer("recv", 0)]},
    "a collective of all": {number: [of_all("started")] for number in range(4)},
    "another collective of the two": {
        0: [of_all()],
        1: [of_two()],
        2: [of_two(sequence=8)],
        3: [of_all()],
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_judge_two_ends_of_an_exchange_names_the_pair(name: str) -> None:
    case = two_nodes(PAIRS[name])
    verdict = judge(case)
    assert (verdict.kind, verdict.confidence, verdict.rank, verdict.node) == ("network", "medium", None, "")
    assert verdict.pair == (1, 2)
    assert "ank 1 (node a) and rank 2 (node b)" in verdict.sentence
    assert verdict.sentence.endswith("one of them, or the link between them.")
    failure = judged_failure(case, verdict, Summary(0.0))
    assert (failure.node, failure.peers, failure.accused) == ("", ("a", "b"), frozenset())
    first, *lines = report_lines(case, judgement(case))
    assert first.startswith("HANG: ranks 1 and 2, or the link between them")
    assert any("Next step: Test the link between these two nodes" in line for line in lines)


@pytest.mark.parametrize("name", NO_PAIRS)
def test_judge_another_cause_names_no_pair(name: str) -> None:
    verdict = judge(two_nodes(NO_PAIRS[name]))
    assert verdict.pair == () and verdict.kind != "network"


def test_judge_pair_on_one_node_is_none() -> None:
    """No link between nodes is part of it."""
    entries = {**neighbours(), 0: [transfer("send", 1)], 1: [transfer("recv", 0)]}
    assert judge(two_nodes({**entries, 2: [of_all()], 3: [of_all()]})).pair == ()


def test_judge_pair_with_a_node_unseen_is_none() -> None:
    assert judge(two_nodes(neighbours(), nodes=3, world_size=6)).pair == ()
