"""The verdict on an incident. Pure.

Always holds: `judge` raises nothing, names a rank of the case or nobody, and does not depend on the order of the nodes;
high confidence is given only where nothing else that we know of explains the evidence.
Does not cover: causes outside the ranks (a switch, a power supply), of which no rank can tell.
"""

from __future__ import annotations

from ..evidence import Case
from ..verdict import HIGH, LOW, Verdict
from .crash import crash, ends_of, followed_only
from .hang import hang
from .scene import scene
from .wording import short


def judge(case: Case) -> Verdict:
    """Who did it, what it was, how we know, and how sure we are."""
    found = scene(case)
    if not found.ranks:
        node = found.lost_node
        return Verdict("node_lost" if node else "unknown", node or "Nothing is known of any rank.", LOW)
    ends = ends_of(found)
    failed = crash(found, ends)
    if failed is not None:
        return failed
    if gone := sorted({name for node in case.nodes for name in node.lost_nodes}):
        return _lost(gone, case)
    living = hang(found, ends)
    return followed_only(found, ends, living) or living


def _lost(gone: list[str], case: Case) -> Verdict:
    """The launchers have given up a node: its counter in their store stood still, and the ranks here did too."""
    who = f"Node{'s' if len(gone) > 1 else ''} {short(', '.join(gone), 120)}"
    verb = "are" if len(gone) > 1 else "is"
    waiting = tuple(rank.rank for rank in case.ranks)
    said = f"{who} {verb} gone: its launcher gave no sign any more, and the ranks of the other nodes stood still."
    return Verdict("node_lost", said, HIGH, None, gone[0], waiting)
