"""What the launchers of a job write to each other while they agree where all ranks stop, as values. Pure.

They share a few texts by key: in the rendezvous store, or in memory on one node. `arrived/N` is node N's first word:
who takes part there and how fast; `word` is the newest (ask, commit, withdraw), usually the leader's; `answer/P/N` is
node N's answer to proposal P; `alive/N` says that node N's launcher is there.
What always holds: `word` is only ever replaced by who has read what stood there (`swap`), so no final word is lost.
Does not cover: who writes what when, see :mod:`.parties`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from .rules import Proposal

ASK, COMMIT, WITHDRAW = "ask", "commit", "withdraw"
WORD = "word"


class Notes(Protocol):
    """What the nodes share. Any call may raise what its store raises, and may then be repeated."""

    def put(self, key: str, text: str) -> None:
        """Write it."""

    def look(self, key: str) -> str:
        """Read it; '' when nobody has written it."""

    def swap(self, key: str, old: str, new: str) -> str:
        """Write `new` where `old` stands ('': nobody has written it); says what stands there then."""

    def gather(self, keys: Sequence[str]) -> list[str] | None:
        """Read all of these; None while one of them is missing."""


@dataclass(frozen=True, slots=True)
class Word:
    """What the leader says: its newest proposal, and what becomes of it. A withdrawal says `why`, unless that is the
    ranks that are `absent`."""

    kind: str
    number: int
    place: int = 0
    absent: tuple[int, ...] = ()
    why: str = ""

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.kind != ASK

    @property
    def proposal(self) -> Proposal:
        """The proposal that it is about."""
        return Proposal(self.number, self.place)

    def encode(self) -> str:
        """As it stands in the notes."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Word:
        """The reverse of `encode`."""
        values = json.loads(text)
        return cls(**{**values, "absent": tuple(values["absent"])})


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the ranks of a node are (training batches per second), and in how many seconds a word reaches them."""

    speed: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a node tells the leader when it arrives, and when it answers. `over`: ranks that come to no boundary any
    more; `speed` in training batches per second, `delay` in seconds (see `Pace`)."""

    yes: bool = True
    over: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    farthest: int = 0
    speed: float = 0.0
    delay: float = 0.0

    def encode(self) -> str:
        """As it stands in the notes."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Report:
        """The reverse of `encode`."""
        values = json.loads(text)
        return cls(**{**values, "over": tuple(values["over"]), "absent": tuple(values["absent"])})


def arrival_key(node: int) -> str:
    """Where this node says that it is there."""
    return f"arrived/{node}"


def answer_key(number: int, node: int) -> str:
    """Where this node answers the proposal with this number."""
    return f"answer/{number}/{node}"


def alive_key(node: int) -> str:
    """Where this node says again and again that its launcher is there."""
    return f"alive/{node}"
