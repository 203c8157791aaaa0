"""Does everybody move? And who is where, for a job in which nobody hangs. Pure.

What always holds: a rank counts as moving only where its board says so: it changed between the two looks, or it has
been silent for no longer than it usually is.

Does not cover: ranks without a board; what the kernel tells of them (they use a processor, they sleep) is no proof of
progress, since a rank that waits in a collective may do either.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ..evidence import BoardFacts, Case, RankEvidence
from ..report import wording
from ..verdict import HIGH, LOW, MEDIUM, Verdict

USUAL = 2.0
"""Times the longest silence of the last minute that is still nothing unusual."""
SHORT = 5.0
"""Seconds of silence that say little, where it is not known what is usual."""
CERTAIN = frozenset(
    ("stopped", "uninterruptible", "exception", "exit", "early_exit", "signal", "out_of_memory")
)
"""Kinds of verdict that one moment is enough for."""
MOST = 32
"""Ranks that have a line of their own."""


def all_move(case: Case) -> bool:
    """Whether every rank that has not finished moves."""
    running = [rank for rank in case.ranks if not (rank.board and rank.board.finished)]
    return bool(running) and all(rank.board is not None and _moves(rank, rank.board) for rank in running)


def nobody_hangs(case: Case) -> Verdict:
    """The verdict on a job in which everybody moves."""
    count = len(case.ranks)
    whom = "The one rank" if count == 1 else f"All {count} ranks"
    seen = all(rank.board and (rank.board.moved or rank.board.finished) for rank in case.ranks)
    verb = "moves" if count == 1 else "move"
    how = "changed its board while we looked" if count == 1 else "changed their boards while we looked"
    if not seen:
        how = "gave its last sign of life" if count == 1 else "gave their last signs of life"
        how += " no longer ago than usual"
    return Verdict(
        "slow", f"{whom} {verb}: {'it' if count == 1 else 'they'} {how}.", HIGH if seen else MEDIUM
    )


def tempered(case: Case, verdict: Verdict) -> tuple[Verdict, str]:
    """The verdict with no more confidence than one look at a job can give, and why. Nobody has passed a limit here:
    at any moment of a healthy job somebody is the last to come to a collective."""
    accused = next((rank for rank in case.ranks if rank.rank == verdict.rank), None)
    if accused is None or verdict.kind in CERTAIN:
        return verdict, ""
    if accused.board is None:
        why = f"Nothing tells whether rank {accused.rank} moves: it has no board."
    elif accused.board.silent < SHORT:
        why = f"Rank {accused.rank} has been silent for {wording.seconds(accused.board.silent)} only."
    else:
        return verdict, ""
    return replace(
        verdict, confidence=LOW
    ), f"{why} This is where it was at one moment; ask again, and compare."


def lines(case: Case, verdict: Verdict) -> list[str]:
    """Who is where: for a person."""
    ranks = case.ranks
    told = [f"  {_line(rank)}" for rank in ranks[:MOST]]
    if len(ranks) > MOST:
        told.append(f"  and {len(ranks) - MOST} more, which move as well")
    nodes = ", ".join(dict.fromkeys(wording.visible(node.node, 60) for node in case.nodes))
    return [
        f"DIAGNOSIS: nobody hangs on {nodes}",
        *told,
        f"  verdict: {verdict.sentence} (confidence {verdict.confidence})",
    ]


def _moves(rank: RankEvidence, board: BoardFacts) -> bool:
    if rank.exit or rank.raised or (rank.process and rank.process.state in ("T", "t", "Z", "gone")):
        return False
    if board.moved:
        return True
    times = [event.ago for event in board.events]
    longest = max((early - late for early, late in pairwise(times)), default=0.0)
    return len(times) > 2 and board.silent <= USUAL * longest


def _line(rank: RankEvidence) -> str:
    board = rank.board
    assert board is not None
    if board.finished:
        return f"rank {rank.rank} (pid {rank.pid}) has finished"
    parts = [f"rank {rank.rank} (pid {rank.pid}) moves"]
    if text := wording.step(rank):
        parts.append(f"{text}, {wording.seconds(board.silent)} ago")
    else:
        parts.append(f"its last sign of life was {wording.seconds(board.silent)} ago")
    place = wording.where(rank)
    return wording.visible("; ".join(parts) + (f"; in  {place}" if place else ""))
