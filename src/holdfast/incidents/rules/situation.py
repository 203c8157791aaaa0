"""The ranks of an incident by what they can be: living, waiting, outside of the collectives, done. Pure.

Always holds: each rank that lives is either waiting or outside.
Does not cover: who of them is to blame (`hang.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..verdict import HIGH, LOW, MEDIUM
from .endings import DONE, LOST, TIMED_OUT, End
from .scene import Scene, Seen, alive, longest_interval
from .whereabouts import COLLECTIVE, MEETING
from .wording import seconds, wait

LONG = 10.0
"""Seconds of silence that count where nobody has set a limit, and as many times its longest interval as `TIMES`."""
TIMES = 5.0


class Situation:
    """The ranks of a scene by what they can be: living, waiting, outside, done."""

    def __init__(self, scene: Scene, ends: Sequence[End]) -> None:
        self.scene = scene
        self.done = [end for end in ends if end.role == DONE]
        self.failed = [end.rank for end in ends if end.role in (LOST, TIMED_OUT)]
        gone = {id(end.seen) for end in ends if end.role in (LOST, TIMED_OUT, DONE)}
        self.living = [seen for seen in scene.ranks if not seen.ended and id(seen) not in gone]
        self.waiting = [seen for seen in self.living if seen.waits]
        self.outside = [seen for seen in self.living if not seen.waits]

    @property
    def waiters(self) -> list[int]:
        return [*(seen.rank for seen in self.waiting), *self.failed]

    @property
    def complete(self) -> bool:
        return not (self.scene.missing_nodes or self.scene.unseen)

    def bounded(self, confidence: str, culprit: Seen) -> str:
        """Where no limit is passed, two samples say little: what is silent for long is likely, the rest is a guess."""
        if self.scene.suspected or self.failed:
            return confidence
        board = culprit.evidence.board
        if board is None or alive(culprit) or board.silent < max(LONG, TIMES * longest_interval(board)):
            return LOW
        return MEDIUM if confidence == HIGH else confidence


def how_far(it: Situation) -> str:
    if not it.waiting:
        return (
            "is the last that does not end" if it.done and not it.failed else "did not come to the collective"
        )
    first = it.waiting[0]
    operation = first.doing.operation or "collective"
    if first.doing.kind == MEETING:
        return f"has not come to {operation}"
    board = first.evidence.board
    step = (
        f"step {board.step}'s " if board and board.step is not None and first.doing.kind == COLLECTIVE else ""
    )
    return f"never reached {step or 'the '}{operation}"


def meanwhile(it: Situation) -> str:
    if not it.waiters:
        return ""
    sequence = next((f" (sequence {seen.last.sequence})" for seen in it.waiting if seen.last), "")
    return f", while {wait(it.waiters)}{sequence}"


def how_long(culprit: Seen) -> str:
    """For how long, and in which section."""
    board = culprit.evidence.board
    if board is None or board.silent < 1.0:
        return ""
    section = f" in section {board.sections[-1].name}" if board.sections else ""
    return f"{section}, silent for {seconds(board.silent)}"
