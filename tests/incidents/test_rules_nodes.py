"""A node that is lost is the verdict, whatever the ranks of the others look like."""

from __future__ import annotations

from dataclasses import replace

from holdfast.incidents.evidence import ELSEWHERE, BoardFacts, Case, NodeEvidence, RankEvidence
from holdfast.incidents.rules import judge


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
    assert "Node gpu-2 is gone" in verdict.sentence and verdict.followers == (0, 1)
    assert judge(Case((left,))).kind != "node_lost"
