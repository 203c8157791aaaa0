"""From the evidence of all nodes to one judgement. Pure: the same evidence always gives the same judgement.

places.py       which part of a program a stack frame is
kernel_waits.py what a process waits in, by the kernel
signatures.py   what one rank is doing: one ordered table
recorder.py     the collectives of torch's flight recorder
exits.py        how ranks ended, and whether that can be the cause
graph.py        all ranks, and which ranks wait for which
blame.py        the culprit: the rules in their order
ended_ranks.py  the culprit among ranks that ended
differences.py  the rank that differs, where all wait
sentence.py     verdicts as sentences
"""

from __future__ import annotations

from ..evidence import Case
from ..verdict import Judgement
from .blame import blame
from .graph import JobView
from .recorder import with_members


def judge(case: Case) -> Judgement:
    """The verdict, each rank's activity, and which ranks wait for which.

    It raises nothing, names a rank of the case or none, and does not depend on the order of the nodes. Confidence is
    high only where no other known cause explains the evidence.
    Does not cover: causes outside the ranks (a switch, a power supply), of which no rank has evidence.
    """
    job = JobView(with_members(case))
    return Judgement(blame(job), tuple(view.activity for view in job.ranks), job.edges)


__all__ = ["judge"]
