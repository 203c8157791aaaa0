"""How the nodes of a cycle agree on the step at which all ranks stop. Pure.

When a node is asked to stop and its ranks take part in agreed stops, it writes so, and all nodes with such ranks
follow. Each node reports how far its ranks are and how fast. Node 0 then proposes a place ahead of all of them; each
rank answers on its page, each node for its ranks. When all say yes, node 0 commits the proposal; when a rank is past
the place, it proposes another one farther ahead. `holdfast.fault_tolerance.stop.rules` has the rules of the ranks.

What always holds: a proposal is committed only when every rank of the cycle said yes; the last word is written by
compare-and-set over the one before, so all nodes read the same; without agreement each rank stops by itself.
Does not cover: ranks that do not end after they have stopped; --term-timeout ends those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...stop import rules
from ...stop.notes import ASK, COMMIT, WITHDRAW, Word
from ...stop.positions import batches_of, describe, inside_validation
from ...stop.rules import LATE, TAKES_PART, RankView
from . import messages as m
from .liveness import StoreContact
from .messages import Action, Event
from .records import LEFT, View, alive_key, encode

WINDOW = 0.02
WINDOW_AT_MOST = 1.0
"""Seconds in which the speed of the ranks is measured: as long as a word takes, within these limits."""
LOG_AFTER = 10.0
"""Seconds without agreement after which a node logs what it waits for."""
VANISHED = 30.0
"""Seconds without a heartbeat after which a launcher is not waited for."""
NAMED = 8
"""Nodes or ranks that one line names, and that are watched at a time."""
ALONE = "each rank stops by itself, or is ended by --term-timeout"


def stop_key(cycle: int) -> str:
    """A node of this cycle was asked to stop: its name and the signal. Compare-and-set, once."""
    return f"stop/{cycle}"


def word_key(cycle: int) -> str:
    """The newest word: ask, commit or withdraw. Compare-and-set."""
    return f"stop/{cycle}/word"


def arrived_key(cycle: int) -> str:
    """Log of what the nodes report first."""
    return f"stop/{cycle}/arrived"


def answers_key(cycle: int) -> str:
    """Log of the nodes' answers."""
    return f"stop/{cycle}/answers"


def declined(cycle: int, node: str, names: Sequence[str], views: Sequence[RankView]) -> list[Action]:
    """The ranks of this node do not take part, or no longer: the other nodes need not wait for them."""
    over = rules.over(views)
    absent = () if over else tuple(view.rank for view in views)
    if names[0] == node:
        word = Word(WITHDRAW, 1, absent=absent, why=rules.why_over(over) if over else "")
        return [m.Cas(word_key(cycle), "", word.encode())]
    return [m.Append(arrived_key(cycle), encode({"node": node, "over": over, "absent": absent}))]


@dataclass(slots=True)
class AgreedStop:
    """One node's part in one agreed stop."""

    cycle: int
    node: str
    names: Sequence[str]  # of the cycle's nodes, in order
    signal: int
    since: float
    word: Word | None = None  # the newest that stands
    _begun: bool = False
    _over: bool = False  # nothing follows
    _asked: str = ""  # the word that this node writes, until it stands
    _written: Word | None = None  # on the pages
    _arrived: bool = False
    _answered: int = 0
    _first: dict[int, tuple[float, int]] = field(
        default_factory=dict
    )  # by rank: when, and after how many batches
    _margins: dict[bool, int] = field(
        default_factory=lambda: {False: 1, True: 1}
    )  # inside a validation or not
    _inside: bool = False
    _logged: bool = False

    @property
    def is_committed(self) -> bool:
        """Whether all ranks stop at one place."""
        return self.word is not None and self.word.kind == COMMIT

    @property
    def is_open(self) -> bool:
        """Whether there is more to come, so that the ranks' pages have to be read often."""
        return not self._over

    @property
    def _leads(self) -> bool:
        return self.names[0] == self.node

    def keys(self, quick: float, view: View) -> dict[str, float]:
        """What is watched, with the seconds between two reads."""
        if len(self.names) == 1 or self._over:
            return {}
        own = {arrived_key(self.cycle): quick, answers_key(self.cycle): quick} if self._leads else {}
        watched = dict.fromkeys(map(alive_key, self._missing(view)[:NAMED]), 1.0)
        return {word_key(self.cycle): quick, LEFT: 1.0, **own, **watched}

    def on(self, event: Event, tick: m.Tick, view: View, contact: StoreContact, now: float) -> list[Action]:
        """One event while the ranks are being stopped."""
        views = tick.stop_views
        if self._over or not isinstance(event, m.Tick):
            return self._read(view, views, now)
        if not self._begun:
            if not any(each.state == TAKES_PART for each in views):
                return self._decline(views) if now - self.since >= LATE else []
            self._begun = True
            wanted = encode({"node": self.node, "signal": self.signal})
            actions: list[Action] = [self._journal("stop_wanted", signal=self.signal, nodes=len(self.names))]
            return [*actions, *([m.Cas(stop_key(self.cycle), "", wanted)] if len(self.names) > 1 else [])]
        actions = self._read(view, views, now)
        if self.word is not None and self.word.final:
            return actions
        trips = 1 if self._leads else 2
        delay = trips * tick.round_trip + quick_interval(len(self.names))
        speed = self._speed(views, delay, now)
        if speed is None:
            return actions
        actions += (
            self._lead(views, view, speed, delay, now)
            if self._leads
            else self._follow(views, speed, delay, now)
        )
        return [*actions, *self._without_the_gone(view, contact, now), *self._log_missing(views, view, now)]

    def close(self, now: float) -> list[Action]:
        """The ranks here have ended, and other nodes may wait for this one."""
        if self._over or not self._leads or self.word is None or self.word.final:
            return []
        return self._withdraw("the ranks of node 0 have ended")

    # -- words ------------------------------------------------------------------------------------------------

    def _read(self, view: View, views: Sequence[RankView], now: float) -> list[Action]:
        """Take over the word that stands, write it to the pages, and log a final one."""
        if len(self.names) > 1 and (text := view.get(word_key(self.cycle))):
            self.word = _word(text)
            if text == self._asked:
                self._asked = ""
        if self.word is None:
            return []
        actions: list[Action] = []
        if self.word != self._written:
            self._written = self.word
            actions.append(m.WriteStopPages(self.word))
        if self.word.final and not self._over:
            actions += self._log_final(self.word, views, now)
        return actions

    def _write(self, word: Word) -> list[Action]:
        """Replace the word that stands. To the other nodes first: if that fails, no rank here acts on it."""
        if len(self.names) == 1:
            self.word = word
            return [m.WriteStopPages(word)]
        if self._asked:
            return []
        old = self.word.encode() if self.word else ""
        self._asked = word.encode()
        return [m.Cas(word_key(self.cycle), old, self._asked)]

    def _withdraw(self, why: str, absent: tuple[int, ...] = ()) -> list[Action]:
        word = self.word or Word(ASK, 1)
        self._asked = ""
        return self._write(Word(WITHDRAW, word.number, word.place, absent, why))

    def _decline(self, views: Sequence[RankView]) -> list[Action]:
        self._over = True
        return [m.WriteStopPages(Word(WITHDRAW, 1)), *declined(self.cycle, self.node, self.names, views)]

    # -- node 0 -----------------------------------------------------------------------------------------------

    def _lead(
        self, views: Sequence[RankView], view: View, speed: float, delay: float, now: float
    ) -> list[Action]:
        if self._asked:
            return []  # the answer is under way
        if self.word is None:
            own = self._report(views, speed, delay, now)
            reports = view.log(arrived_key(self.cycle))
            if own is None or (len(reports) < len(self.names) - 1 and not _refuses([own])):
                return []
            found = [own, *reports.values()]
            if _refuses(found):
                return self._withdraw(*_refusal(found))
            longest = own["delay"] + max((line["delay"] for line in reports.values()), default=0.0)
            self._margins[False] = rules.margin(max(line["speed"] for line in found), longest)
            return self._ask(1, max(line["farthest"] for line in found))
        if over := rules.over(views):
            return self._withdraw(rules.why_over(over))
        answer = rules.joint_answer(views, self.word.proposal)
        lines = view.log(answers_key(self.cycle)).values()
        answers = [line for line in lines if line.get("number") == self.word.number]
        if _refuses(answers):
            return self._withdraw(*_refusal(answers))
        if answer is None or len(answers) < len(self.names) - 1:
            return []
        if answer and all(line["yes"] for line in answers):
            return self._write(replace(self.word, kind=COMMIT))
        self._margins[self._inside] *= 2
        return self._ask(
            self.word.number + 1, max([rules.farthest(views), *(line["farthest"] for line in answers)])
        )

    def _ask(self, number: int, reached: int) -> list[Action]:
        self._inside = inside_validation(reached)
        return self._write(Word(ASK, number, rules.ahead(reached, self._margins[self._inside])))

    # -- the other nodes --------------------------------------------------------------------------------------

    def _follow(self, views: Sequence[RankView], speed: float, delay: float, now: float) -> list[Action]:
        if not self._arrived:
            report = self._report(views, speed, delay, now)
            self._arrived = report is not None
            return [m.Append(arrived_key(self.cycle), encode(report))] if report else []
        word = self.word
        if word is None or word.final or self._answered == word.number:
            return []
        over, yes = rules.over(views), rules.joint_answer(views, word.proposal)
        if yes is None and not over:
            return []
        self._answered = word.number
        answer = {"node": self.node, "number": word.number, "yes": bool(yes), "over": over}
        return [m.Append(answers_key(self.cycle), encode({**answer, "farthest": rules.farthest(views)}))]

    def _report(
        self, views: Sequence[RankView], speed: float, delay: float, now: float
    ) -> dict[str, Any] | None:
        """What this node reports first; None: it is too early."""
        absent = rules.absent(views, now - self.since)
        if absent is None and not any(each.lost for each in views):
            return None
        over, farthest = rules.over(views), rules.farthest(views)
        report = {"node": self.node, "over": over, "absent": absent or (), "farthest": farthest}
        return {**report, "speed": speed, "delay": delay}

    def _speed(self, views: Sequence[RankView], delay: float, now: float) -> float | None:
        """Training batches per second of the fastest rank here; None: not measured yet."""
        window = max(WINDOW, min(delay, WINDOW_AT_MOST))
        speeds = []
        for each in views:
            if each.state == TAKES_PART:
                batches = batches_of(each.position)
                began, before = self._first.setdefault(each.rank, (now, batches))
                if now - began >= window:
                    speeds.append((batches - before) / (now - began))
        if not speeds and any(each.state == TAKES_PART for each in views):
            return None
        return max(speeds, default=0.0)

    # -- nodes that are waited for ----------------------------------------------------------------------------

    def _missing(self, view: View) -> list[str]:
        if not self._leads:
            return [self.names[0]]
        lines = view.log(arrived_key(self.cycle) if self.word is None else answers_key(self.cycle))
        if self.word is not None:
            lines = {name: line for name, line in lines.items() if line.get("number") == self.word.number}
        return [name for name in self.names[1:] if name not in lines]

    def _without_the_gone(self, view: View, contact: StoreContact, now: float) -> list[Action]:
        left = view.log(LEFT)
        for name in self._missing(view)[:NAMED] if len(self.names) > 1 else ():
            if name in left or contact.still_for(alive_key(name), now) >= VANISHED:
                return self._withdraw(f"the launcher of node {name} is gone")
        return []

    def _log_missing(self, views: Sequence[RankView], view: View, now: float) -> list[Action]:
        if self._logged or now - self.since < LOG_AFTER:
            return []
        self._logged = True
        if self.word is not None and (missing := rules.unanswered(views, self.word.proposal)):
            who = _cut([f"rank {each.rank} is {describe(each.position)}" for each in missing])
        elif self._leads and (names := self._missing(view)):
            who = "no answer from " + _cut([f"node {name}" for name in names])
        else:
            return []
        return [self._log(f"no agreement on where all ranks stop after {now - self.since:.0f} s: {who}")]

    # -- lines ------------------------------------------------------------------------------------------------

    def _log_final(self, word: Word, views: Sequence[RankView], now: float) -> list[Action]:
        if word.kind == COMMIT:
            stopped = [each.at for each in views if each.at >= word.place]
            if not stopped and not all(each.over for each in views):
                return []  # which boundary it is, is known when a rank has come to it
            self._over = True
            place, spent = describe(max(stopped, default=word.place)), round((now - self.since) * 1000, 1)
            record = self._journal("stop_agreed", place=place, milliseconds=spent, proposals=word.number)
            return [self._log(f"all ranks stop {place}", logging.INFO), record]
        self._over = True
        who = word.why
        if word.absent:
            verb = "takes" if len(word.absent) == 1 else "take"
            who = f"{_cut([f'rank {rank}' for rank in word.absent])} {verb} no part in it"
        record = self._journal("stop_withdrawn", reason=who)
        if all(each.over for each in views) or (word.absent and not self._leads):
            return [record]
        why = f"{who} (the program there does not ask where to stop)" if word.absent else who
        text = f"ranks could not agree on a common stop step ({why}); {ALONE}"
        return [self._log(text, logging.WARNING if word.absent else logging.INFO), record]

    @staticmethod
    def _log(text: str, level: int = logging.WARNING) -> m.Log:
        return m.Log(level, text)

    @staticmethod
    def _journal(kind: str, **values: Any) -> m.Journal:
        return m.Journal(kind, values)


def quick_interval(nodes: int) -> float:
    """Seconds between two reads of a key that nodes wait for: 5,000 reads a second in the whole job."""
    return max(0.02, nodes / 5000)


def _word(text: str) -> Word:
    try:
        return Word.decode(text)
    except (ValueError, KeyError, TypeError):  # of another version
        return Word(WITHDRAW, 1, why="a launcher of another version takes part")


def _refuses(lines: Iterable[Mapping[str, Any]]) -> bool:
    return any(line.get("absent") or line.get("over") for line in lines)


def _refusal(lines: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[int, ...]]:
    found = list(lines)
    absent = tuple(sorted(rank for line in found for rank in line.get("absent", ())))
    over = tuple(sorted(rank for line in found for rank in line.get("over", ())))
    return ("", absent) if absent else (rules.why_over(over), ())


def _cut(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
