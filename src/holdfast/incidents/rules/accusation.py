"""Verdicts as the rules make them: against one rank, or against nobody. Pure.

Always holds: the culprit is a rank of the case and none of its own followers.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..verdict import Verdict
from .scene import Seen
from .wording import sentence


def against(culprit: Seen, kind: str, said: str, confidence: str, followers: Iterable[int] = ()) -> Verdict:
    """A verdict on this rank; `said` begins where "Rank 3 (node a)" ends."""
    others = tuple(sorted(set(followers) - {culprit.rank}))
    text = sentence(f"{who(culprit)} {said}")
    return Verdict(kind, text, confidence, culprit.rank, culprit.evidence.node, others)


def of_nobody(kind: str, said: str, confidence: str, followers: Iterable[int] = ()) -> Verdict:
    """A verdict that names no rank."""
    return Verdict(
        kind, sentence(said[:1].upper() + said[1:]), confidence, followers=tuple(sorted(set(followers)))
    )


def who(seen: Seen) -> str:
    """`Rank 3 (node a)`."""
    return f"Rank {seen.rank} (node {seen.evidence.node})" if seen.evidence.node else f"Rank {seen.rank}"
