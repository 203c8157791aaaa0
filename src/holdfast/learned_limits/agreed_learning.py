"""Learning limits on all ranks or on none: they are asked first, over the side group, with a limit to the waiting.

What always holds: no rank begins the collective of the client unless every rank has come and agrees; a rank that does
not come costs the others `patience` once and then nothing; nothing here raises. Does not cover: a rank that dies
between the question and the collective. Its connections close, and the others go on without new limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.side_group import Disagreement, SideGroup

from .learning_rules import SECTIONS, Selection

if TYPE_CHECKING:
    import logging

    Log = logging.Logger | logging.LoggerAdapter[Any]

PATIENCE = 60.0
"""Seconds in which the other ranks must have come."""
PATIENCE_AT_A_STOP = 10.0
"""The same where an exception ends the training: its time may be short."""


class SectionLimits(Protocol):
    """What of a rank's client is needed here."""

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: list[str],
        calc_out_of_section: bool,
        skip_if_not_ready: bool,
        *,
        process_group: Any,
    ) -> bool: ...


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


def sections_wanted_by_all(side: SideGroup, own: Selection, log: Log, *, patience: float) -> Selection:
    """What of this rank's selection every rank has selected. Collective."""
    wishes = [name in own.sections for name in SECTIONS] + [own.out_of_section]
    *wanted, out = wanted_by_all(side, wishes, log, patience=patience)
    return Selection(tuple(name for name, by_all in zip(SECTIONS, wanted, strict=True) if by_all), out)


def learn_sections(client: SectionLimits, side: SideGroup, agreed: Selection, log: Log) -> bool:
    """Have the client calculate these; whether there are new limits. Collective. An error is logged."""
    sections, out = list(agreed.sections), agreed.out_of_section
    log.info("Updating FT timeouts for: %s update out-of-section: %s", sections, out)
    calculate = partial(
        client.calculate_and_set_section_timeouts,
        selected_sections=sections,
        calc_out_of_section=out,
        skip_if_not_ready=True,
        process_group=side.process_group,
    )
    return learn(calculate, log)


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
