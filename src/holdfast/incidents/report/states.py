"""What a rank is doing, in one of a few words: the colour of its square on the page. Pure.

Does not cover: why; that is the verdict.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ..evidence import Case, RankEvidence
from ..verdict import Verdict
from .grouping import main_thread

CULPRIT, FAILED, STOPPED, WAITS, MOVES, FINISHED, OTHER, UNTOLD = (
    "culprit",
    "failed",
    "stopped",
    "waits",
    "moves",
    "finished",
    "other",
    "untold",
)

COLLECTIVES = frozenset(
    """
    all_reduce all_gather all_gather_into_tensor all_gather_object all_to_all all_to_all_single barrier
    broadcast broadcast_object_list gather gather_object monitored_barrier recv recv_object_list reduce
    reduce_scatter reduce_scatter_tensor scatter scatter_object_list send send_object_list
    """.split()  # noqa: SIM905
)
"""Functions of torch.distributed in which a rank waits for others."""

MEANINGS = MappingProxyType(
    {
        CULPRIT: "named as the culprit",
        FAILED: "failed too",
        STOPPED: "stopped, or in the kernel where no signal reaches it",
        WAITS: "waits for others in a collective operation",
        MOVES: "moved while we looked",
        FINISHED: "finished",
        OTHER: "none of these",
        UNTOLD: "nothing is known of it",
    }
)
"""Every word, with what it means for a person, in the order of a legend."""


def state_of(rank: RankEvidence, verdict: Verdict) -> str:
    """One of `MEANINGS`; what a person looks for first wins."""
    if rank.rank == verdict.rank:
        return CULPRIT
    rank = as_seen(rank)
    if rank.raised or (rank.exit and not rank.exit.asked and rank.exit.status):
        return FAILED
    if (rank.exit and not rank.exit.asked) or (rank.board and rank.board.finished):
        return FINISHED
    if rank.process and rank.process.state in ("T", "t", "D"):
        return STOPPED
    if waits(rank):
        return WAITS
    moved = (rank.board and rank.board.moved) or (rank.process and rank.process.cpu > 0)
    return MOVES if moved else OTHER if rank.process or rank.board or rank.stacks else UNTOLD


def as_seen(rank: RankEvidence) -> RankEvidence:
    """The rank as it was when the evidence was taken, without how it ended afterwards."""
    raised = None if rank.raised and rank.raised.ago < 0 else rank.raised
    end = None if rank.exit and rank.exit.ago < 0 else rank.exit
    return replace(rank, raised=raised, exit=end)


def waits(rank: RankEvidence) -> bool:
    """Whether it is in a collective operation: as torch's flight recorder tells, else as its stack does."""
    if rank.collectives:
        return any(each.state not in ("", "completed") for each in rank.collectives)
    thread = main_thread(rank)
    return thread is not None and any(
        "torch/distributed/" in frame.file and frame.function in COLLECTIVES for frame in thread.frames[:8]
    )


def states(case: Case, verdict: Verdict) -> dict[int, str]:
    """Of every rank of the job, by number; also of those of which nothing is told."""
    told = {rank.rank: state_of(rank, verdict) for rank in case.ranks}
    size = min(max((node.world_size for node in case.nodes), default=0), 1 << 20)
    everyone = set(range(size)) | told.keys()
    if verdict.rank is not None:
        everyone.add(verdict.rank)
    return {
        rank: told.get(rank, CULPRIT if rank == verdict.rank else UNTOLD)
        for rank in sorted(everyone)
        if rank >= 0
    }
