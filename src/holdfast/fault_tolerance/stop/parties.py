"""The launchers' part in an agreed stop, as values: one node leads, the others follow. Pure.

They share notes (:mod:`.notes`) and take turns whenever they like; every writing may be repeated. The leader asks only
once all nodes have arrived, so that a proposal reaches everybody soon; it withdraws as soon as it knows a reason to.

What always holds: a proposal is committed only when every rank of the job said yes to it; after that, or after it was
withdrawn, nothing more is said, and all nodes read the same last word.
Does not cover: noticing that a node has vanished, be it the leader or another one (:mod:`.presence` does; `withdraw` is
for who notices); and notes that are lost with the store between a commit and its reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import rules
from .notes import (
    ASK,
    COMMIT,
    WITHDRAW,
    WORD,
    Notes,
    Pace,
    Report,
    Word,
    answer_key,
    arrival_key,
)
from .positions import inside_validation
from .rules import RankView


def _arrival(views: Sequence[RankView], waited: float, pace: Pace) -> Report | None:
    absent = rules.absent(views, waited)
    if absent is None and not any(view.lost for view in views):
        return None
    return Report(
        over=rules.over(views),
        absent=tuple(absent or ()),
        farthest=rules.farthest(views),
        speed=pace.speed,
        delay=pace.delay,
    )


class Leader:
    """Node 0 of `world`. `word` is the newest one."""

    def __init__(self, notes: Notes, world: int) -> None:
        self._notes, self._others = notes, range(1, world)
        # Batches ahead: of training, and (True) of a validation, whose speed nobody measures.
        self._margins = {False: 1, True: 1}
        self._inside = False
        self._stands = ""
        self.word: Word | None = None

    def turn(self, views: Sequence[RankView], waited: float, pace: Pace) -> Word | None:
        """Go on with it: `views` are the local ranks now, `waited` seconds after this node was told to stop."""
        word = self.word
        if word is not None and word.final:
            return word
        if word is None:
            return self._begin(_arrival(views, waited, pace))
        if over := rules.over(views):
            return self.withdraw(rules.why_over(over))
        return self._weigh(word, views)

    def withdraw(self, why: str, absent: tuple[int, ...] = ()) -> Word:
        """Nobody is asked to stop any more, unless a final word stands already."""
        word = self.word or Word(ASK, 1)
        return word if word.final else self._say(Word(WITHDRAW, word.number, word.place, absent, why))

    def decline(self, views: Sequence[RankView]) -> None:
        """No rank here takes part (any more)."""
        over = rules.over(views)
        absent = () if over else tuple(view.rank for view in views)
        self.withdraw(rules.why_over(over) if over else "", absent)

    def misses(self, most: int) -> list[int]:
        """The nodes (so many of them at most) from which a note is missing."""
        word, found = self.word, list[int]()
        for node in self._others:
            key = arrival_key(node) if word is None else answer_key(word.number, node)
            if len(found) == most:
                break
            if not self._notes.look(key):
                found.append(node)
        return found

    def _begin(self, own: Report | None) -> Word | None:
        if own is None:
            return None
        if refusal := self._refused([own]):
            return refusal
        texts = self._notes.gather([arrival_key(node) for node in self._others])
        if texts is None:
            return None
        reports = [own, *map(Report.decode, texts)]
        if refusal := self._refused(reports):
            return refusal
        delay = own.delay + max((report.delay for report in reports[1:]), default=0.0)
        self._margins[False] = rules.margin(max(report.speed for report in reports), delay)
        return self._ask(1, max(report.farthest for report in reports))

    def _refused(self, reports: Sequence[Report]) -> Word | None:
        absent = tuple(sorted(rank for report in reports for rank in report.absent))
        over = tuple(sorted(rank for report in reports for rank in report.over))
        if absent:
            return self.withdraw("", absent)
        return self.withdraw(rules.why_over(over)) if over else None

    def _ask(self, number: int, reached: int) -> Word:
        self._inside = inside_validation(reached)
        return self._say(Word(ASK, number, rules.ahead(reached, self._margins[self._inside])))

    def _weigh(self, word: Word, views: Sequence[RankView]) -> Word:
        own = rules.joint_answer(views, word.proposal)
        if own is None:
            return word
        texts = self._notes.gather([answer_key(word.number, node) for node in self._others])
        if texts is None:
            return word
        answers = [Report.decode(text) for text in texts]
        if refusal := self._refused(answers):
            return refusal
        if own and all(report.yes for report in answers):
            return self._say(Word(COMMIT, word.number, word.place))
        self._margins[self._inside] *= 2
        reached = max([rules.farthest(views), *(report.farthest for report in answers)])
        return self._ask(word.number + 1, reached)

    def _say(self, word: Word) -> Word:
        text = word.encode()  # to the others first: when this fails, nobody here acts on it
        self._stands = self._notes.swap(WORD, self._stands, text)
        self.word = Word.decode(self._stands)  # another one where somebody has withdrawn in this node's place
        return self.word


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

    def withdraw(self, why: str) -> Word | None:
        """The leader is gone: withdraw in its place, unless its last word stands already."""
        text = self._notes.look(WORD)
        word = Word.decode(text) if text else Word(ASK, 1)
        if not word.final:
            last = Word(WITHDRAW, word.number, word.place, why=why)
            word = Word.decode(self._notes.swap(WORD, text, last.encode()))
        self.word = word
        return word

    def decline(self, views: Sequence[RankView]) -> None:
        """No rank here takes part (any more)."""
        over = rules.over(views)
        absent = () if over else tuple(view.rank for view in views)
        self._notes.put(arrival_key(self._node), Report(yes=False, over=over, absent=absent).encode())

    def misses(self, most: int) -> list[int]:
        """The nodes that this one waits for: the leader."""
        return [0]

    def reply(self, views: Sequence[RankView]) -> None:
        """Answer what the leader asks, once all ranks here have; `views` are younger than the word on their pages."""
        word = self.word
        if word is None or word.final or self._answered == word.number:
            return
        over = rules.over(views)
        yes = rules.joint_answer(views, word.proposal)
        if yes is None and not over:
            return
        report = Report(yes=bool(yes), over=over, farthest=rules.farthest(views))
        self._notes.put(answer_key(word.number, self._node), report.encode())
        self._answered = word.number
