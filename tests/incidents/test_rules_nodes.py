"""A node that is lost is the verdict, whatever the ranks of the others look like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.incidents.evidence import (
    ELSEWHERE,
    BoardFacts,
    Case,
    Exit,
    Nature,
    NodeEvidence,
    Process,
    Raised,
    RankEvidence,
)
from tests.incidents.cases import judge


def test_a_node_that_the_launchers_gave_up_is_to_blame() -> None:
    ranks = tuple(
        RankEvidence(n, n, 100 + n, "gpu-1", board=BoardFacts(connected=True, step=7, silent=20.0))
        for n in range(2)
    )
    left = NodeEvidence("gpu-1", ELSEWHERE, nodes=2, world_size=4, ranks=ranks)
    verdict = judge(Case((replace(left, lost_nodes=("gpu-2",)),)))
    assert (verdict.kind, verdict.rank, verdict.node, verdict.confidence) == (
        "node_lost",
        None,
        "gpu-2",
        "high",
    )
    assert verdict.followers == (0, 1)
    assert judge(Case((left,))).kind != "node_lost"


@pytest.mark.parametrize(
    ("nature", "nodes", "expected"),
    [
        (Nature.LOST_PEER, 2, ("elsewhere", None)),
        (Nature.LOST_PEER, 1, ("stopped", 1)),
        (Nature.TIMED_OUT, 2, ("stopped", 1)),
    ],
)
def test_a_lost_connection_accuses_no_living_rank_while_a_node_is_unseen(
    nature: Nature, nodes: int, expected: tuple[str, int | None]
) -> None:
    """A rank that lives has closed no connection; it may well be the one that another one waited for in vain."""
    failed = RankEvidence(
        0,
        0,
        100,
        "gpu-1",
        exit=Exit(1, "exit code 1", 0.1),
        raised=Raised("RuntimeError", "of gloo", 0.2, nature=nature),
    )
    stopped = RankEvidence(
        1, 1, 101, "gpu-1", process=Process(state="T"), board=BoardFacts(connected=True, step=7, silent=20.0)
    )
    seen = NodeEvidence("gpu-1", ELSEWHERE, nodes=nodes, world_size=2 * nodes, ranks=(failed, stopped))
    verdict = judge(Case((seen,)))
    assert (verdict.kind, verdict.rank) == expected
