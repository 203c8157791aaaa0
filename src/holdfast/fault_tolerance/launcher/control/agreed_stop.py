"""How the nodes of a cycle agree on the step at which all ranks stop. Pure.

When a node receives a stop signal and its ranks take part in agreed stops, it writes so, and all nodes with such ranks
follow. Each node reports the position of its ranks. Node 0 proposes the next place ahead of all of them; each rank
answers on its page, each node for its ranks. When all agree, node 0 commits the proposal; when a rank is past the
place, it proposes another one farther ahead. `holdfast.fault_tolerance.stop.rules` has the rules of the ranks.

What always holds: a proposal is committed only when every rank of the cycle has agreed. The last word is written by
compare-and-set over the one before, so all nodes read the same; a node whose store is gone withdraws for its own ranks.
Without agreement each rank stops by itself.
Does not cover: ranks that do not end after they have stopped; --term-timeout ends those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import Signals
from typing import TYPE_CHECKING, Any

from ...stop import rules
from ...stop.rules import ASK, COMMIT, LATE, TAKES_PART, WITHDRAW, Word, describe
from . import messages as m
from .messages import Action, Log
from .records import encode

if TYPE_CHECKING:
    from .node import Node

LOOK = 0.01
"""Seconds between two reads of the ranks' pages."""
FARTHER = 4
"""How many times as far ahead each further proposal is: training continues while a proposal is on its way."""
LOG_AFTER = 10.0
"""Seconds without agreement after which a node logs what it waits for."""
VANISHED = 30.0
"""Seconds without a heartbeat after which a launcher is not waited for."""
NAMED = 8
"""Nodes or ranks that one line names, and that are watched at a time."""
ALONE = "each rank stops by itself, or is ended by --term-timeout"


def has_participants(node: Node) -> bool:
    """Whether a rank of this node takes part in agreed stops."""
    return any(view.state == TAKES_PART for view in node.tick.stop_views)


def decline(node: Node) -> list[Action]:
    """The ranks of this node do not take part, or no longer: the other nodes need not wait for them."""
    over = rules.over(node.tick.stop_views)
    absent = () if over else tuple(view.rank for view in node.tick.stop_views)
    if node.is_leader:
        word = Word(WITHDRAW, 1, absent=absent, why=rules.why_over(over) if over else "")
        return node.once(m.Cas(node.key("word"), "", word.encode()))
    line = encode({"node": node.name, "over": over, "absent": absent})
    return node.once(m.Append(node.key("arrived"), line))


@dataclass(slots=True)
class AgreedStop:
    """One node's part in one agreed stop."""

    signal: int
    since: float
    word: Word | None = None  # the newest that counts
    is_closed: bool = False  # nothing follows
    look_at: float = 0.0  # when the pages are read next
    _has_begun: bool = False
    _current: str = ""  # that word as it was written
    _pending: str = ""  # the word that this node writes, until it counts
    _written: Word | None = None  # on the pages
    _answered: int = 0
    _margin: int = 1  # batches ahead of the farthest rank
    _has_logged: bool = False

    @property
    def is_committed(self) -> bool:
        """Whether all ranks stop at one place."""
        return self.word is not None and self.word.kind == COMMIT

    def on(self, node: Node, event: m.Event, now: float) -> list[Action]:
        """One event while the ranks are being stopped."""
        if isinstance(event, m.Tick):
            self.look_at = now + LOOK
        if not self._has_begun and not self.is_closed:
            if not has_participants(node):
                return self._decline(node) if now - self.since >= LATE else []
            self._has_begun = True
            wanted = m.Cas(node.key("stop"), "", encode({"node": node.name, "signal": self.signal}))
            record = m.journal("stop_wanted", signal=Signals(self.signal).name, nodes=node.nodes)
            return [record, *(node.once(wanted) if node.nodes > 1 else [])]
        actions = [*self._read(node, now), *self._check_store(node, now)]
        if self.is_closed or (self.word is not None and self.word.final) or not isinstance(event, m.Tick):
            return actions
        turn = self._lead if node.is_leader else self._follow
        return [*actions, *turn(node, now), *self._check_missing(node, now)]

    def close(self, node: Node) -> list[Action]:
        """The ranks here have ended, and other nodes may wait for this one."""
        is_open = node.is_leader and self.word is not None and not self.word.final
        return self._withdraw(node, "the ranks of node 0 have ended") if is_open else []

    # -- words ------------------------------------------------------------------------------------------------

    def _read(self, node: Node, now: float) -> list[Action]:
        """Take over the word that counts, write it to the pages, and log a final one."""
        is_final = self.word is not None and self.word.final
        if node.nodes > 1 and not is_final and (text := node.watch(node.key("word"))):
            self.word, self._current = _word(text), text
            if text == self._pending:
                self._pending = ""
        if self.word is None:
            return []
        actions: list[Action] = [] if self.word == self._written else [m.WriteStopPages(self.word)]
        self._written = self.word
        return [*actions, *(self._log_final(node, self.word, now) if self.word.final else [])]

    def _write(self, node: Node, word: Word) -> list[Action]:
        """Replace the word that counts. To the other nodes first: if that fails, no rank here acts on it."""
        if node.nodes == 1:
            self.word = self._written = word
            return [m.WriteStopPages(word)]
        if self._pending:
            return []
        self._pending = word.encode()
        return [m.Cas(node.key("word"), self._current, self._pending)]

    def _withdraw(
        self, node: Node, why: str = "", absent: tuple[int, ...] = (), lost: str = ""
    ) -> list[Action]:
        if self._pending and _word(self._pending).kind == WITHDRAW:
            return []  # under way
        word, self._pending = self.word or Word(ASK, 1), ""
        return self._write(node, Word(WITHDRAW, word.number, word.place, absent, why, lost))

    def _check_store(self, node: Node, now: float) -> list[Action]:
        """Without the store no word follows: withdraw for the ranks here, which may wait for one."""
        if node.nodes == 1 or node.settings.is_host or self.is_closed or (self.word and self.word.final):
            return []
        silent = now - node.contact.answered
        why = node.tick.refused or (f"no answer for {silent:.0f} s" if silent >= VANISHED else "")
        if not why:
            return []
        why = f"the node that hosts the rendezvous is gone ({why})"
        word = self.word or Word(ASK, 1)
        self.word = self._written = Word(WITHDRAW, word.number, word.place, why=why)
        return [m.WriteStopPages(self.word), *self._log_final(node, self.word, now, is_warning=True)]

    def _decline(self, node: Node) -> list[Action]:
        self.is_closed = True
        return [m.WriteStopPages(Word(WITHDRAW, 1)), *(decline(node) if node.nodes > 1 else [])]

    # -- node 0 -----------------------------------------------------------------------------------------------

    def _lead(self, node: Node, now: float) -> list[Action]:
        views = node.tick.stop_views
        answers = self._answers(node)
        if self._pending:
            return []
        if self.word is None:
            own = self._report(node, now)
            if own is None or (len(answers) < node.nodes - 1 and not _refuses([own])):
                return []
            found = [own, *answers.values()]
            if _refuses(found):
                return self._withdraw(node, *_refusal(found))
            return self._ask(node, 1, max(line["farthest"] for line in found))
        if over := rules.over(views):
            return self._withdraw(node, rules.why_over(over))
        if _refuses(answers.values()):
            return self._withdraw(node, *_refusal(answers.values()))
        own_answer = rules.joint_answer(views, self.word)
        if own_answer is None or len(answers) < node.nodes - 1:
            return []
        if own_answer and all(line["yes"] for line in answers.values()):
            return self._write(node, replace(self.word, kind=COMMIT))
        self._margin *= FARTHER
        farthest = max([rules.farthest(views), *(line["farthest"] for line in answers.values())])
        return self._ask(node, self.word.number + 1, farthest)

    def _ask(self, node: Node, number: int, reached: int) -> list[Action]:
        return self._write(node, Word(ASK, number, rules.ahead(reached, self._margin)))

    def _answers(self, node: Node) -> dict[str, dict[str, Any]]:
        """What the other nodes have written: their reports, or their answers to the newest proposal."""
        name = node.key("arrived" if self.word is None else "answers")
        node.watch(name)
        number = None if self.word is None else self.word.number
        lines = {each: line for each, line in node.view.log(name).items() if line.get("number") == number}
        wanted = {"farthest"} if self.word is None else {"farthest", "yes"}
        return {each: line for each, line in lines.items() if wanted <= line.keys() or _refuses([line])}

    # -- the other nodes --------------------------------------------------------------------------------------

    def _follow(self, node: Node, now: float) -> list[Action]:
        report = self._report(node, now)
        arrived = m.Append(node.key("arrived"), encode(report)) if report else None
        actions = node.once(arrived) if arrived else []
        word, views = self.word, node.tick.stop_views
        if word is None or word.final or self._answered == word.number:
            return actions
        over, yes = rules.over(views), rules.joint_answer(views, word)
        if yes is None and not over:
            return actions
        self._answered = word.number
        answer = {"node": node.name, "number": word.number, "yes": bool(yes), "over": over}
        line = encode({**answer, "farthest": rules.farthest(views)})
        return [*actions, m.Append(node.key("answers"), line)]

    def _report(self, node: Node, now: float) -> dict[str, Any] | None:
        """The first line of this node; None: it is too early."""
        views = node.tick.stop_views
        absent = rules.absent(views, now - self.since)
        if absent is None and not any(each.lost for each in views):
            return None
        over, farthest = rules.over(views), rules.farthest(views)
        return {"node": node.name, "over": over, "absent": absent or (), "farthest": farthest}

    # -- nodes that are waited for, and lines -------------------------------------------------------------------

    def _check_missing(self, node: Node, now: float) -> list[Action]:
        """Withdraw where a launcher that is waited for is gone; log once who is waited for."""
        if node.nodes == 1:
            missing = []
        elif node.is_leader:
            answers = self._answers(node)
            missing = [name for name in node.membership.names[1:] if name not in answers][:NAMED]
        else:
            missing = [node.membership.leader]
        for name in missing:
            if node.is_lost(name, VANISHED, now):
                return self._withdraw(node, lost=name)
        if self._has_logged or now - self.since < LOG_AFTER:
            return []
        self._has_logged = True
        views = node.tick.stop_views
        late = rules.unanswered(views, self.word) if self.word is not None else []
        if late:
            who = _cut([f"rank {each.rank} is {describe(each.position)}" for each in late])
        elif missing and node.is_leader:
            who = "no answer from " + _cut([f"node {name}" for name in missing])
        else:
            return []
        return [Log(f"no agreement on where all ranks stop after {now - self.since:.0f} s: {who}")]

    def _log_final(self, node: Node, word: Word, now: float, *, is_warning: bool = False) -> list[Action]:
        views = node.tick.stop_views
        if self.is_closed:
            return []
        if word.kind == COMMIT:
            stopped = [each.at for each in views if each.at >= word.place]
            if not stopped and not all(each.over for each in views):
                return []  # the boundary is not certain before a rank has come to it
            self.is_closed = True
            place, spent = describe(max(stopped, default=word.place)), round((now - self.since) * 1000, 1)
            values = {"place": place, "milliseconds": spent, "proposals": word.number}
            return [Log(f"all ranks stop {place}", logging.INFO), m.journal("stop_agreed", **values)]
        self.is_closed = True
        ranks, verb = (
            _cut([f"rank {rank}" for rank in word.absent]),
            "does" if len(word.absent) == 1 else "do",
        )
        who = f"{ranks} {verb} not take part" if word.absent else word.why
        if word.lost:
            who = f"the launcher of node {word.lost} is gone"
        record = m.journal("stop_withdrawn", reason=who)
        if all(each.over for each in views):
            return [record]
        why = f"{who} (the program does not use agreed stops)" if word.absent else who
        text = f"ranks could not agree on a common stop step ({why}); {ALONE}"
        is_warning = is_warning or bool(word.absent or word.lost)
        return [Log(text, logging.WARNING if is_warning else logging.INFO), record]


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
