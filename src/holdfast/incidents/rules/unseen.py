"""Ranks that wait for somebody whom the evidence does not show: on another node, or nobody knows who. Pure.

Does not cover: ranks that differ from each other (`collectives.py`).
"""

from __future__ import annotations

from ..verdict import LOW, MEDIUM, Verdict
from .accusation import of_nobody
from .recorder import said as collective_said
from .situation import Situation
from .whereabouts import MEETING
from .wording import ranks, wait


def elsewhere(it: Situation) -> Verdict | None:
    if it.outside or not it.waiting or it.complete:
        return None
    kind = "node_lost" if it.scene.lost_node else "elsewhere"
    where = it.waiting[0].doing.operation or "a collective"
    missing = it.scene.lost_node or f"{it.scene.missing_nodes or 'some'} node(s) have told nothing"
    said = f"{ranks(it.waiters)} of the nodes that are known only wait in {where}; {missing}"
    return of_nobody(kind, said, MEDIUM if it.scene.suspected else LOW, it.waiters)


def cannot_tell(it: Situation) -> Verdict:
    if it.scene.lost_node:
        return of_nobody("node_lost", it.scene.lost_node, MEDIUM, it.waiters)
    if it.waiting and not it.outside:
        first = it.waiting[0]
        where = collective_said(first.last) if first.last else first.doing.operation
        if any(seen.doing.kind == MEETING for seen in it.waiting):
            where = first.doing.operation
            said = f"{wait(it.waiters)} to meet in {where}: address, port or world size may be wrong"
            return of_nobody("startup", said, LOW, it.waiters)
        said = f"all {len(it.waiting)} ranks wait in {where} and none differs: the network between them, or who left it"
        return of_nobody("slow" if not it.scene.suspected else "unknown", said, LOW, it.waiters)
    why = next((seen.evidence.no_stacks for seen in it.living if seen.evidence.no_stacks), "")
    help_ = f"there are no stacks ({why})" if why else "stacks or the flight recorder of the ranks would tell"
    return of_nobody("unknown", f"no rank stands out among {len(it.scene.ranks)}: {help_}", LOW)
