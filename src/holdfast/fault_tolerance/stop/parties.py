"""The launchers' part in an agreed stop, as values: one node leads, the others follow. Pure.

They share notes (a few texts by key: the rendezvous store, or memory on one node) and take turns whenever they like;
every writing may be repeated. `arrived/N` is node N's first word: who takes part there and how fast; `word` is the
leader's newest (ask, commit, withdraw); `answer/P/N` is node N's answer to proposal P. The leader asks only once all
nodes have arrived, so that a proposal reaches everybody soon.

What always holds: the leader commits a proposal to which every rank of the job said yes, and no other; after that, or
after it has withdrawn, it says nothing more.
Does not cover: a leader that vanishes. The ranks that wait then stay where they are until their launcher withdraws.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from . import rules
from .rules import Proposal, RankView

ASK, COMMIT, WITHDRAW = "ask", "commit", "withdraw"
WORD = "word"


class Notes(Protocol):
    """What the nodes share. Any call may raise what its store raises, and may then be repeated."""

    def put(self, key: str, text: str) -> None:
        """Write it."""

    def look(self, key: str) -> str:
        """Read it; '' when nobody has written it."""

    def gather(self, keys: Sequence[str]) -> list[str] | None:
        """Read all of these; None while one of them is missing."""


@dataclass(frozen=True, slots=True)
class Word:
    """What the leader says: its newest proposal, and what becomes of it. `absent`: the ranks because of which it
    withdraws (none: a rank's training is over)."""

    kind: str
    number: int
    place: int = 0
    absent: tuple[int, ...] = ()

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
    """How fast the ranks of a node are (boundaries per second), and in how many seconds a word reaches them."""

    speed: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a node tells the leader when it arrives, and when it answers."""

    yes: bool = True
    over: bool = False
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
        return cls(**{**values, "absent": tuple(values["absent"])})


def arrival_key(node: int) -> str:
    """Where this node says that it is there."""
    return f"arrived/{node}"


def answer_key(number: int, node: int) -> str:
    """Where this node answers the proposal with this number."""
    return f"answer/{number}/{node}"


def _arrival(views: Sequence[RankView], waited: float, pace: Pace) -> Report | None:
    absent = rules.absent(views, waited)
    over = any(view.over for view in views)
    if absent is None and not over:
        return None
    return Report(
        over=over,
        absent=tuple(absent or ()),
        farthest=rules.farthest(views),
        speed=pace.speed,
        delay=pace.delay,
    )


class Leader:
    """Node 0 of `world`. `word` is what it said last."""

    def __init__(self, notes: Notes, world: int) -> None:
        self._notes, self._others = notes, range(1, world)
        self._margin = 0
        self.word: Word | None = None

    def turn(self, views: Sequence[RankView], waited: float, pace: Pace) -> Word | None:
        """Go on with it: `views` are the local ranks now, `waited` seconds after this node was told to stop."""
        word = self.word
        if word is not None and word.final:
            return word
        if word is None:
            return self._begin(_arrival(views, waited, pace))
        if any(view.over for view in views):
            return self._say(Word(WITHDRAW, word.number, word.place))
        return self._weigh(word, views)

    def _begin(self, own: Report | None) -> Word | None:
        if own is None:
            return None
        texts = self._notes.gather([arrival_key(node) for node in self._others])
        if texts is None:
            return None
        reports = [own, *map(Report.decode, texts)]
        absent = tuple(sorted(rank for report in reports for rank in report.absent))
        if absent or any(report.over for report in reports):
            return self._say(Word(WITHDRAW, 1, absent=absent))
        delay = own.delay + max((report.delay for report in reports[1:]), default=0.0)
        self._margin = rules.margin(max(report.speed for report in reports), delay)
        return self._ask(1, max(report.farthest for report in reports))

    def _ask(self, number: int, reached: int) -> Word:
        return self._say(Word(ASK, number, rules.ahead(reached, self._margin)))

    def _weigh(self, word: Word, views: Sequence[RankView]) -> Word:
        own = rules.joint_answer(views, word.proposal)
        if own is None:
            return word
        texts = self._notes.gather([answer_key(word.number, node) for node in self._others])
        if texts is None:
            return word
        answers = [Report.decode(text) for text in texts]
        if any(report.over for report in answers):
            return self._say(Word(WITHDRAW, word.number, word.place))
        if own and all(report.yes for report in answers):
            return self._say(Word(COMMIT, word.number, word.place))
        self._margin *= 2
        reached = max([rules.farthest(views), *(report.farthest for report in answers)])
        return self._ask(word.number + 1, reached)

    def _say(self, word: Word) -> Word:
        self._notes.put(WORD, word.encode())  # to the others first: when this fails, nobody here acts on it
        self.word = word
        return word


class Follower:
    """Any other node. `word` is what the leader said last."""

    def __init__(self, notes: Notes, node: int) -> None:
        self._notes, self._node = notes, node
        self._arrived = False
        self._answered = 0
        self.word: Word | None = None

    def turn(self, views: Sequence[RankView], waited: float, pace: Pace) -> Word | None:
        """As that of the leader."""
        if self.word is not None and self.word.final:
            return self.word
        if not self._arrived and (report := _arrival(views, waited, pace)) is not None:
            self._notes.put(arrival_key(self._node), report.encode())
            self._arrived = True
        if text := self._notes.look(WORD):
            self.word = Word.decode(text)
        return self.word

    def reply(self, views: Sequence[RankView]) -> None:
        """Answer what the leader asks, once all ranks here have; `views` are younger than the word on their pages."""
        word = self.word
        if word is None or word.final or self._answered == word.number:
            return
        over = any(view.over for view in views)
        yes = rules.joint_answer(views, word.proposal)
        if yes is None and not over:
            return
        report = Report(yes=bool(yes), over=over, farthest=rules.farthest(views))
        self._notes.put(answer_key(word.number, self._node), report.encode())
        self._answered = word.number
