"""Learning limits on all ranks or on none: they are asked first, over the side group, with a limit to the waiting.

What always holds: no rank begins the collective of the client unless every rank has come and agrees; a rank that does
not come costs the others `patience` once and then nothing; nothing here raises. Does not cover: a rank that dies
between the question and the collective. Its connections close, and the others go on without new limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.side_group import Disagreement, SideGroup

if TYPE_CHECKING:
    import logging

    Log = logging.Logger | logging.LoggerAdapter[Any]

PATIENCE = 60.0
"""Seconds in which the other ranks must have come."""
PATIENCE_AT_A_STOP = 10.0
"""The same where an exception ends the training: its time may be short."""


def wanted_by_all(
    side: SideGroup,
    wishes: Sequence[bool],
    log: Log,
    *,
    patience: float = PATIENCE,
    meanwhile: Callable[[], None] | None = None,
) -> list[bool]:
    """Each wish, true where every rank has it; all false when not every rank answers. Collective."""
    known = side.failed
    try:
        vetoes = side.maximum(
            [0.0 if wish else 1.0 for wish in wishes], patience=patience, meanwhile=meanwhile
        )
    except Disagreement as why:
        if not known:  # else it has been said
            log.warning("the limits stay as they are: the other ranks could not be asked (%s)", why)
        return [False] * len(wishes)
    return [veto == 0.0 for veto in vetoes]


def learn(calculate: Callable[[], bool], log: Log) -> bool:
    """Have the client calculate; whether there are new limits. Collective. An error is logged."""
    try:
        learned = calculate()
    except Exception as error:  # a connection that closed, a backend's own errors
        log.warning("the limits stay as they are: calculating them failed: %s", error)
        return False
    if not learned:
        log.warning("the limits stay as they are: no rank has seen enough yet")
    return learned
