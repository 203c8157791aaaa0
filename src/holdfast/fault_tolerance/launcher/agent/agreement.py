"""A thread that agrees with the other launchers where all ranks stop, while the agent waits for its ranks to end.

It looks at the pages of the local ranks every few milliseconds and shares notes with the other nodes; node 0 of the
cycle leads (`holdfast.fault_tolerance.stop.parties`). It ends when the ranks have stopped at the place that was agreed
on, when there is nothing to agree on, or with `close`.
What always holds: whatever goes wrong, the ranks are told to go on; they never wait for a launcher that gave up.
Does not cover: ranks that do not end after they have stopped; those end by --term-timeout.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ...stop import rules
from ...stop.parties import (
    COMMIT,
    WITHDRAW,
    WORD,
    Follower,
    Leader,
    Notes,
    Pace,
    Word,
    answer_key,
    arrival_key,
)
from ...stop.positions import describe
from ...stop.rules import RankView
from ..nodes.store_call import HostGone
from ..ranks.stop_pages import StopPages

logger = logging.getLogger("holdfast.launcher")
LOOK = 0.003  # seconds between two looks in a small job
LOOKS = 5000  # at the store in a second by all nodes of a larger one
WINDOW = 0.02  # seconds in which the speed of the ranks is measured
UNSAID = 10.0  # seconds without agreement before somebody asks why
CLOSING = 2.0  # seconds in which a last word reaches the store
NAMED = 8  # ranks or nodes that one line names


class OpenNotes(Notes, Protocol):
    """Notes that are let go of at the end."""

    def close(self) -> None:
        """Let go of them."""


class Meter:
    """Measures how fast the local ranks are, from the first look on."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, int]] = {}

    def speed(self, views: list[RankView], now: float) -> float:
        """Boundaries per second of the fastest."""
        speeds = [0.0]
        for view in views:
            since, position = self._first.setdefault(view.rank, (now, view.position))
            if now > since:
                speeds.append(rules.boundaries_between(position, view.position) / (now - since))
        return max(speeds)


class Agreement(threading.Thread):
    """One node's part, as `node` of `world` in the cycle.

    `gone` says of a local rank whether its process has ended; `record` writes into the journal; `wanted` is a note for
    the other nodes (its key, its text); after `unsaid` seconds without agreement it is said who holds it up.
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
        unsaid: float = UNSAID,
    ) -> None:
        super().__init__(name="holdfast-agreement", daemon=True)
        self._pages, self._notes, self._node, self._world = pages, notes, node, world
        self._gone, self._record, self._wanted = gone, record, wanted
        self._party = Leader(notes, world) if node == 0 else Follower(notes, node)
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._meter = Meter()
        self._pause = max(LOOK, world / LOOKS)
        self._unsaid, self._said = unsaid, False

    def run(self) -> None:
        """Agree, and say on what."""
        try:
            word = self._agree()
        except Exception as error:
            word = self._give_up(error)
        if word is not None and word.kind == COMMIT:
            self._say_agreed(word)
        elif word is not None:
            self._say_withdrawn(word)

    def close(self) -> None:
        """End the thread; one that is stuck in the store is left behind (it is a daemon)."""
        self._ended.set()
        self.join(CLOSING)
        self._notes.close()

    def _agree(self) -> Word | None:
        """The leader's last word; None when the ranks ended before there was one."""
        if self._wanted:
            self._notes.put(*self._wanted)
        delay = self._delay()
        written = None
        while True:
            ended = self._ended.wait(self._pause)
            now = time.monotonic()
            views = self._views()
            pace = Pace(self._meter.speed(views, now), delay)
            if now - self._began < WINDOW and not ended:
                continue
            word = self._party.turn(views, now - self._began, pace)
            if word is not None and word != written:
                self._pages.write(word)
                written = word
            if word is not None and word.final:
                return word
            if isinstance(self._party, Follower):
                self._party.reply(self._views())
            if ended:
                return word
            self._say_who_is_missing(views, word, now)

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
        last = replace(word, kind=WITHDRAW) if word else Word(WITHDRAW, 1)
        self._pages.write(last)
        why = str(error) if isinstance(error, HostGone) else repr(error)
        logger.warning("no agreement on where all ranks stop (%s): each rank stops by itself", why)
        self._record("stop_withdrawn", reason=why)
        return replace(last, kind="")

    def _say_agreed(self, word: Word) -> None:
        """As soon as a rank has come to the place: which boundary it is, nobody can tell before."""
        took = time.monotonic() - self._began
        while True:
            views = self._views()
            stopped = [view.at for view in views if view.at >= word.place]
            if stopped or all(view.over for view in views) or self._ended.wait(self._pause):
                break
        place = describe(max(stopped, default=word.place))
        logger.info("all ranks stop %s", place)
        self._record("stop_agreed", place=place, milliseconds=round(took * 1000, 1), proposals=word.number)

    def _say_withdrawn(self, word: Word) -> None:
        if word.kind != WITHDRAW:
            return
        if not word.absent:
            self._record("stop_withdrawn", reason="a rank has ended its training")
            return
        ranks = _some([f"rank {rank}" for rank in word.absent])
        who = f"{ranks} {'takes' if len(word.absent) == 1 else 'take'} no part in it"
        if self._node == 0:
            logger.warning(
                "no agreement on where all ranks stop: %s (the program there does not ask where to stop); "
                "each rank stops by itself",
                who,
            )
        self._record("stop_withdrawn", reason=who)

    def _say_who_is_missing(self, views: list[RankView], word: Word | None, now: float) -> None:
        if self._said or now - self._began < self._unsaid:
            return
        self._said = True
        if word is not None and (missing := rules.unanswered(views, word.proposal)):
            who = _some([f"rank {view.rank} is {describe(view.position)}" for view in missing])
        elif self._node:
            return  # its ranks have answered
        else:
            who = "no answer from " + _some([f"node {node}" for node in self._missing_nodes(word)])
        logger.warning("no agreement on where all ranks stop after %.0f s: %s", now - self._began, who)

    def _missing_nodes(self, word: Word | None) -> list[int]:
        found = []
        for node in range(1, self._world):
            key = arrival_key(node) if word is None else answer_key(word.number, node)
            if not self._notes.look(key):
                found.append(node)
            if len(found) > NAMED:
                break
        return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
