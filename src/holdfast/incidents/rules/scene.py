"""All ranks of an incident beside each other, each with what it does. Pure.

Always holds: the order of the nodes does not matter; a moment of one node is compared with one of another by the wall
clock, and within one node by its own.
Does not cover: what follows from it (`crash.py`, `hang.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

from ..evidence import (
    EARLY,
    ELSEWHERE,
    HANG,
    BoardFacts,
    Case,
    Collective,
    NodeEvidence,
    RankEvidence,
)
from .doing import doing
from .kernel import LOCKED, POLLS, waits_in
from .recorder import latest, pending, says_what_is_done
from .whereabouts import COLLECTIVE, UNKNOWN, Doing

RHYTHM = 3.0
"""A rank lives that is silent for less than so many of its own longest intervals."""
SOON = 1.0
"""Seconds: a shorter silence says nothing."""
_LOST_NODE = re.compile(
    r"\b(node|host)\b.*\b(lost|gone|vanished|down|unreachable|no longer|not answer)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank."""

    evidence: RankEvidence
    doing: Doing
    last: Collective | None = None
    """The collective that it waits in; where the recorder does not say what is done, the last that it entered."""
    at: float = 0.0
    """When its evidence was taken, to compare with other nodes."""

    @property
    def rank(self) -> int:
        return self.evidence.rank

    @property
    def ended(self) -> bool:
        """Whether it was gone before the evidence was taken; whom the monitor ended was not."""
        return self.evidence.exit is not None and not self.evidence.exit.asked

    @property
    def waits(self) -> bool:
        """Whether it lives and waits for its peers."""
        return self.doing.waits_for_peers and not self.ended


@dataclass(frozen=True, slots=True)
class Scene:
    """The incident."""

    ranks: tuple[Seen, ...]
    triggers: frozenset[str]
    accused: frozenset[int]
    unseen: int
    """Ranks of which nothing is told; 0 where that is not known."""
    missing_nodes: int
    lost_node: str
    """The note that a node is gone."""
    notes: tuple[str, ...]

    @property
    def suspected(self) -> bool:
        """Whether a limit is passed, or structural signs were seen."""
        return bool(self.triggers & {HANG, EARLY, ELSEWHERE}) or any(
            seen.evidence.passed for seen in self.ranks
        )


def scene(case: Case) -> Scene:
    """The incident, of a case."""
    nodes = sorted(case.nodes, key=lambda node: (node.node_rank, node.node, node.at, node.mono))
    answered = any(rank.stacks_from == "the rank itself" for node in nodes for rank in node.ranks)
    comparable = all(node.at > 0 for node in nodes)
    ranks = [
        _seen(_as_it_was(rank, node), node, answered, comparable) for node in nodes for rank in node.ranks
    ]
    ranks.sort(key=lambda seen: (seen.rank, seen.evidence.node, seen.evidence.local_rank, seen.evidence.pid))
    notes = tuple(note for node in nodes for note in node.notes)
    world = max((node.world_size for node in nodes), default=0)
    numbers = {seen.rank for seen in ranks}
    return Scene(
        ranks=_waiting_together(tuple(ranks)),
        triggers=frozenset(node.trigger for node in nodes),
        accused=frozenset(
            node.accused for node in nodes if node.accused in numbers and node.accused is not None
        ),
        unseen=max(0, world - len(numbers)),
        missing_nodes=max(0, case.missing_nodes),
        lost_node=next((note for note in notes if _LOST_NODE.search(note)), ""),
        notes=notes,
    )


def _as_it_was(rank: RankEvidence, node: NodeEvidence) -> RankEvidence:
    """After a hang the ranks are ended: what they did after they had been looked at only follows from that."""
    if node.trigger not in (HANG, EARLY, ELSEWHERE):
        return rank
    raised = None if rank.raised and rank.raised.ago < 0 else rank.raised
    ended = None if rank.exit and rank.exit.ago < 0 else rank.exit
    return replace(rank, raised=raised, exit=ended)


def _seen(rank: RankEvidence, node: NodeEvidence, answered: bool, comparable: bool) -> Seen:
    found = doing(rank, others_answer=answered and rank.stacks_from != "the rank itself")
    open_one = pending(rank.collectives)
    if open_one is not None and found.kind in ("lock", "network", UNKNOWN) and not found.clear:
        # `Work.wait()` is native: the stack ends in the program's own line, and the kernel sees a futex.
        text = f"waits in {open_one.operation}" + (f" at {found.place}" if found.place else "")
        found = replace(found, kind=COLLECTIVE, text=text, clear=True, operation=open_one.operation)
    last = open_one if says_what_is_done(rank.collectives) else latest(rank.collectives)
    return Seen(rank, found, last, node.at if comparable else 0.0)


def _waiting_together(ranks: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """Native waits that may be a lock's or a collective's: which of the two, by what the others do.

    Most ranks at one line of the program wait there for each other, or for the one that is not there. And where no rank
    waits in a collective for certain, those wait whose wait we cannot name, for those of whom we know something else.
    """
    vague = [seen for seen in ranks if _vague(seen)]
    places = Counter(seen.doing.place for seen in vague if seen.doing.place)
    place, often = max(places.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    together = often >= 2 and often * 2 >= len(ranks)
    certain = any(seen.waits and seen.doing.clear for seen in ranks)
    others = any(not seen.ended and not _vague(seen) and seen.doing.kind != UNKNOWN for seen in ranks)
    return tuple(
        replace(
            seen, doing=replace(seen.doing, kind=COLLECTIVE, operation=seen.doing.operation or "collective")
        )
        if _vague(seen) and ((together and seen.doing.place == place) or (others and not certain))
        else seen
        for seen in ranks
    )


def _vague(seen: Seen) -> bool:
    doing, process = seen.doing, seen.evidence.process
    if seen.ended or doing.clear or doing.kind not in ("lock", "network", UNKNOWN) or process is None:
        return False
    return waits_in(process) in (LOCKED, POLLS)


def alive(seen: Seen, suspected: bool = False) -> bool:
    """Whether its board shows that it goes on: it moved, or, unsuspected, is silent no longer than is usual for it."""
    board = seen.evidence.board
    if board is None or seen.ended or seen.evidence.raised is not None:
        return False
    if board.moved:
        return True
    return (
        not suspected
        and seen.evidence.passed is None
        and board.silent <= max(SOON, RHYTHM * longest_interval(board))
    )


def longest_interval(board: BoardFacts) -> float:
    """The longest time between two signs of life of its ring, in seconds; 0 where there are none."""
    signs = [event.ago for event in board.events]
    return max((a - b for a, b in pairwise(signs)), default=0.0)
