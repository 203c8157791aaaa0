"""What the launcher says about an agreed stop: where all ranks stop, or why not, and what happens then.

Does not cover: the agreement, see :mod:`.agreement`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ...stop.notes import Word
from ...stop.positions import describe
from ...stop.rules import TAKES_PART, RankView

logger = logging.getLogger("holdfast.launcher")
NAMED = 8  # ranks or nodes that one line names
ALONE = "each rank stops by itself, or is ended by --term-timeout"

Record = Callable[..., None]


def say_agreed(record: Record, word: Word, place: int, seconds: float) -> None:
    """All ranks stop at `place`; the agreement took so many seconds."""
    logger.info("all ranks stop %s", describe(place))
    record("stop_agreed", place=describe(place), milliseconds=round(seconds * 1000, 1), proposals=word.number)


def say_withdrawn(record: Record, word: Word, node: int, *, vanished: bool, over: bool) -> None:
    """There is no agreement. Who takes no part is said on one node, unless that one may not know.

    `vanished`: because this node misses another; `over`: all ranks here have ended, so that nobody needs to know.
    """
    who = takes_no_part(word.absent) if word.absent else word.why
    record("stop_withdrawn", reason=who)
    if word.absent and (node == 0 or 0 in word.absent):
        why = f"{who} (the program there does not ask where to stop)"
        logger.warning("no agreement on where all ranks stop: %s; %s", why, ALONE)
    elif vanished:
        logger.warning("no agreement on where all ranks stop: %s; %s", who, ALONE)
    elif not over:
        logger.info("no place to stop at is agreed on: %s; %s", who, ALONE)


def say_too_late(record: Record, views: Sequence[RankView], seconds: float) -> None:
    """These ranks began to take part when nobody was waited for any more."""
    late = [view.rank for view in views if view.state == TAKES_PART]
    who = f"{some('rank', late)} began to take part more than {seconds:.0f} s after the signal"
    logger.warning("no agreement on where all ranks stop: %s; %s", who, ALONE)
    record("stop_withdrawn", reason=who)


def say_given_up(record: Record, why: str) -> None:
    """The launchers cannot agree because of an error."""
    logger.warning("no agreement on where all ranks stop (%s): %s", why, ALONE)
    record("stop_withdrawn", reason=why)


def say_waiting(seconds: float, who: str) -> None:
    """It takes long, because of these."""
    logger.warning("no agreement on where all ranks stop after %.0f s: %s", seconds, who)


def where(views: Sequence[RankView]) -> str:
    """Where these ranks are."""
    return _cut([f"rank {view.rank} is {describe(view.position)}" for view in views])


def some(what: str, numbers: Sequence[int]) -> str:
    """`rank 1, rank 2, …`."""
    return _cut([f"{what} {number}" for number in numbers])


def takes_no_part(ranks: Sequence[int]) -> str:
    """Who does not."""
    return f"{some('rank', ranks)} {'takes' if len(ranks) == 1 else 'take'} no part in it"


def _cut(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
