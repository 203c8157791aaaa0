"""Notices that another node was told to stop, with each beat of the thread that talks to the rendezvous store.

A node with ranks that take part in an agreed stop is told to stop too (an event). One without them does what it did
before there were agreed stops, and only says that they take no part, so that nobody waits for them.
Does not cover: the agreement itself (:mod:`..agent.agreement`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from torch.distributed import Store

from ...stop.notes import WITHDRAW, WORD, Report, Word, arrival_key
from ...stop.rules import LATE, over, why_over
from ..ranks.stop_pages import StopPages
from .records import StopAsked
from .stop_notes import WANTED, key_of

logger = logging.getLogger("holdfast.launcher")


def wanted_text(node: str, number: int) -> str:
    """What a node writes that was told to stop by this signal."""
    return json.dumps({"node": node, "signal": number})


class StopWatch:
    """Looks for one cycle after another; `post` gets the event. Ranks have `patience` seconds to begin taking part."""

    def __init__(self, pages: StopPages, post: Callable[[object], None], patience: float = LATE) -> None:
        self._pages, self._post, self._patience = pages, post, patience
        self._cycle = -1
        self._seen: float | None = None
        self._done = False

    def look(self, store: Store, cycle: int, node: int) -> None:
        """Once in a beat: this node takes part in the cycle as number `node`."""
        if cycle != self._cycle:
            self._cycle, self._seen, self._done = cycle, None, False
        if self._done or not (self._seen or store.check([key_of(cycle, WANTED)])):
            return
        self._seen = self._seen or time.monotonic()
        if self._pages.taking_part:
            self._done = True
            asked = json.loads(store.get(key_of(cycle, WANTED)))
            self._post(StopAsked(cycle, asked["node"], asked["signal"]))
        elif time.monotonic() - self._seen >= self._patience:
            self._done = True
            self._decline(store, cycle, node)

    def _decline(self, store: Store, cycle: int, node: int) -> None:
        views = self._pages.views(lambda local_rank: False)
        ended = over(views)
        ranks = () if ended else tuple(view.rank for view in views)
        if node:
            report = Report(yes=False, over=ended, absent=ranks)
            store.set(key_of(cycle, arrival_key(node)), report.encode())
            return
        word = Word(WITHDRAW, 1, absent=ranks, why=why_over(ended) if ended else "")
        # Only where nothing stands: a stop that was committed stays so while its ranks save.
        store.compare_set(key_of(cycle, WORD), "", word.encode())
