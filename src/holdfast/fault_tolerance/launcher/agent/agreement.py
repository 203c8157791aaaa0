"""A thread that agrees with the other launchers where all ranks stop, while the agent waits for its ranks to end.

It looks at the pages of the local ranks every few milliseconds and shares notes with the other nodes; node 0 of the
cycle leads (`holdfast.fault_tolerance.stop.parties`). It ends when the ranks have stopped at the place that was agreed
on, when there is nothing to agree on, or with `close`. Until a local rank takes part it asks and says nothing.
What always holds: whatever goes wrong, the ranks are told to go on; they never wait for a launcher that gave up, has
ended, or vanished.
Does not cover: ranks that do not end after they have stopped; those end by --term-timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from ...stop import rules
from ...stop.notes import COMMIT, WITHDRAW, WORD, Notes, Pace, Word
from ...stop.parties import Follower, Leader
from ...stop.presence import Presence
from ...stop.rules import LATE, RankView
from ..nodes.store_call import HostGone
from ..ranks.stop_pages import StopPages
from . import agreement_said as said
from .meter import Meter, window

LOOK = 0.003  # seconds between two looks in a small job
LOOKS = 5000  # at the store in a second by all nodes of a larger one
UNSAID = 10.0  # seconds without agreement before somebody asks why
VANISHED = 30.0  # seconds without a sign of life of a launcher after which nobody waits for it
CLOSING = 2.0  # seconds in which a last word reaches the store


class OpenNotes(Notes, Protocol):
    """Notes that are let go of at the end."""

    def close(self) -> None:
        """Let go of them."""


class Agreement(threading.Thread):
    """One node's part, as `node` of `world` in the cycle.

    `gone` says of a local rank whether its process has ended; `record` writes into the journal; `wanted` is a note for
    the other nodes (its key, its text); `begins` is called when it turns out that ranks here take part. After `unsaid`
    seconds without agreement it is said who holds it up; a launcher without a sign of life for `vanished` seconds is
    no longer waited for. Ranks have `patience` seconds to begin taking part.
    """

    def __init__(
        self,
        pages: StopPages,
        notes: OpenNotes,
        node: int,
        world: int,
        gone: Callable[[int], bool],
        record: Callable[..., None],
        wanted: tuple[str, str] | None = None,
        *,
        begins: Callable[[], None] = lambda: None,
        unsaid: float = UNSAID,
        vanished: float = VANISHED,
        patience: float = LATE,
    ) -> None:
        super().__init__(name="holdfast-agreement", daemon=True)
        self._pages, self._notes, self._node, self._world = pages, notes, node, world
        self._gone, self._record, self._wanted, self._begins = gone, record, wanted, begins
        self._party = Leader(notes, world) if node == 0 else Follower(notes, node)
        self._presence = Presence(notes, node, vanished) if world > 1 else None
        self._missed = False
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._pause = max(LOOK, world / LOOKS)
        self._unsaid, self._said, self._patience = unsaid, False, patience

    def run(self) -> None:
        """Agree, and say on what."""
        if not self._somebody_takes_part():
            self._decline()
            return
        try:
            word = self._agree()
        except Exception as error:
            word = self._give_up(error)
        if word is not None and word.kind == COMMIT:
            self._say_agreed(word)
        elif word is not None and word.kind == WITHDRAW:
            over = all(view.over for view in self._views())
            said.say_withdrawn(self._record, word, self._node, vanished=self._missed, over=over)

    def close(self) -> None:
        """End the thread; one that is stuck in the store is left behind (it is a daemon)."""
        self._ended.set()
        self.join(CLOSING)
        self._notes.close()

    def _somebody_takes_part(self) -> bool:
        """Wait for that: the signal may come before training begins. Most programs never do."""
        while not self._pages.taking_part:
            if self._ended.wait(self._pause) or time.monotonic() - self._began >= self._patience:
                return self._pages.taking_part
        return True

    def _decline(self) -> None:
        """Nobody here takes part. Whoever waits for this node hears it, and so does a rank that begins now."""
        if self._ended.is_set():
            return
        self._pages.write(Word(WITHDRAW, 1))
        if self._world > 1:
            with suppress(Exception):
                self._party.decline(self._views())
        while not self._ended.wait(self._patience / 10):
            if self._pages.taking_part:
                said.say_too_late(self._record, self._views(), self._patience)
                return

    def _agree(self) -> Word | None:
        """The last word; None when the ranks ended before there was one."""
        self._begins()
        if self._wanted:
            self._notes.put(*self._wanted)
        delay = self._delay()
        meter = Meter(window(delay))
        written = None
        while True:
            ended = self._ended.wait(self._pause)
            now = time.monotonic()
            views = self._views()
            pace = Pace(meter.speed(views, now), delay)
            if not ended and not meter.ready(now) and self._pages.taking_part:
                continue
            word = self._party.turn(views, now - self._began, pace)
            if word is None or not word.final:
                word = self._without_the_gone(word, ended, now)
            if word is not None and word != written:
                self._pages.write(word)
                written = word
            if word is not None and word.final:
                return word
            if isinstance(self._party, Follower):
                self._party.reply(self._views())
            if ended:
                return self._leave()
            self._say_who_is_missing(views, word, now)

    def _without_the_gone(self, word: Word | None, ended: bool, now: float) -> Word | None:
        """The last word, if a node that is waited for is no longer there; else the same word."""
        if self._presence is None or ended or not self._presence.due(now):
            return word
        node = self._presence.gone(self._party.misses(said.NAMED), now)
        if node is None:
            return word
        self._missed = True
        return self._party.withdraw(f"the launcher of node {node} is gone")

    def _leave(self) -> Word | None:
        """The ranks here have ended, and others may wait for this node."""
        if self._presence is None:
            return None
        with suppress(HostGone):  # then the others are gone, too, or know it by themselves
            self._presence.leave()
            if isinstance(self._party, Leader):
                return self._party.withdraw("the ranks of node 0 have ended")
        return None

    def _views(self) -> list[RankView]:
        return self._pages.views(self._gone)

    def _delay(self) -> float:
        """Seconds that a word takes: it is written, and read by the look after the one that just missed it."""
        if self._world == 1:
            return self._pause
        self._notes.look(WORD)  # makes the connection
        began = time.monotonic()
        self._notes.look(WORD)
        trip = time.monotonic() - began
        return (trip if self._node == 0 else 2 * trip) + self._pause

    def _give_up(self, error: Exception) -> Word:
        word = self._party.word
        if word is not None and word.final:  # it stands, whatever failed after it
            self._pages.write(word)
            return word
        last = replace(word, kind=WITHDRAW) if word else Word(WITHDRAW, 1)
        self._pages.write(last)
        said.say_given_up(self._record, str(error) if isinstance(error, HostGone) else repr(error))
        return replace(last, kind="")

    def _say_agreed(self, word: Word) -> None:
        """As soon as a rank has come to the place: which boundary it is, nobody can tell before."""
        took = time.monotonic() - self._began
        while True:
            views = self._views()
            stopped = [view.at for view in views if view.at >= word.place]
            if stopped or all(view.over for view in views) or self._ended.wait(self._pause):
                break
        said.say_agreed(self._record, word, max(stopped, default=word.place), took)

    def _say_who_is_missing(self, views: list[RankView], word: Word | None, now: float) -> None:
        if self._said or now - self._began < self._unsaid:
            return
        self._said = True
        if word is not None and (missing := rules.unanswered(views, word.proposal)):
            who = said.where(missing)
        elif self._node:
            return  # its ranks have answered
        else:
            who = "no answer from " + said.some("node", self._party.misses(said.NAMED + 1))
        said.say_waiting(now - self._began, who)
