"""Where a preempted training stops: all its ranks at the same place, in one of three ways.

Under ft_launcher the launchers agree on a place (`Agreed`), and the ranks run no collective for it while they train; a
process that trains alone stops at its next boundary (`Alone`); several ranks under another launcher ask each other
(`Together`). What always holds: all ranks of a training take the same way; no way asks anybody in a signal handler; the
place is a boundary of training that every rank comes to.

Does not cover: ranks that train different numbers of batches; several ranks without a process group and without
ft_launcher; several ranks whose launchers cannot agree (a node is lost): they train on until they are ended.
"""

from __future__ import annotations

import logging
from typing import Protocol

from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.preemption.asking_each_other import Together
from holdfast.preemption.notices import Notices
from holdfast.side_group import SideGroup

PATIENCE = 1800.0
"""Seconds that the ranks wait for one another here: as long as in the training's own groups."""

log = logging.getLogger("holdfast.ptl_resiliency")


class Way(Protocol):
    """How this rank learns that all stop here. `batches` are the training batches done in this start."""

    @property
    def deadline(self) -> float | None:
        """When the job is killed, in seconds of `time.monotonic`, if the launcher says."""

    def listening(self) -> bool:
        """This rank now has its signal handlers, and on return all ranks have theirs; collective.

        True: all ranks stop here, before anything is trained. Raises CollectiveFailed when a rank ended before it
        listened.
        """

    def begin(self) -> bool:
        """Training begins; True: it need not."""

    def after_batch(self, batches: int) -> bool:
        """After each training batch."""

    def in_validation(self, batches: int, place: int) -> bool:
        """In a validation, at this place of it."""

    def close(self) -> None:
        """Training is over. May be called twice."""


def find_way(notices: Notices) -> Way:
    """The way of this rank, and of all others. Collective: called by all ranks of the default process group.

    Ranks may come to it long after one another. Whoever waits here must still end by the signals' default action, as
    the rank that it waits for does: so the handlers are installed afterwards. Raises CollectiveFailed
    when a rank ended.
    """
    group = SideGroup(PATIENCE)
    point = StopPoint.find()
    everyone_has_one = False
    try:
        everyone_has_one = group.maximum([point is None]) == [False]
    except BaseException:
        group.close()
        raise
    finally:
        if point is not None and not everyone_has_one:
            point.end()
    if point is not None and everyone_has_one:
        return Agreed(point, notices, group)
    return Together(group, notices) if group.process_group is not None else Alone(notices)


class Alone:
    """The only process of its training: at the next boundary."""

    deadline = None

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    def listening(self) -> bool:
        return False

    def begin(self) -> bool:
        return self._notices.number != 0

    def after_batch(self, batches: int) -> bool:
        return self._notices.number != 0

    def in_validation(self, batches: int, place: int) -> bool:
        return self._notices.number != 0

    def close(self) -> None:
        """Nothing to give back."""


class Agreed:
    """The launchers agree on a place. Where they cannot, a process alone stops by itself, and several train on."""

    def __init__(self, point: StopPoint, notices: Notices, group: SideGroup) -> None:
        self._point, self._notices, self._group = point, notices, group
        self._passes = point.passes
        self._alone = group.process_group is None
        self._says = group.rank == 0
        self._last: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._last or self._point.deadline

    def listening(self) -> bool:
        point = self._point
        self._notices.tell = point.notice
        if self._notices.number:
            point.notice(self._notices.number)
        point.begin()
        try:
            # Only if all know: what only some know is agreed on by the launchers, now that all ranks take part.
            return self._group.maximum([not point.wanted]) == [False] and not self._alone
        finally:
            self._group.close()

    def begin(self) -> bool:
        return self._point.given_up and self._go_on_alone()

    def after_batch(self, batches: int) -> bool:
        return self._passes(position(batches)) or (self._point.given_up and self._go_on_alone())

    def in_validation(self, batches: int, place: int) -> bool:
        return self._passes(position(batches, place)) or (self._point.given_up and self._go_on_alone())

    def close(self) -> None:
        self._last = self._point.deadline
        self._notices.tell = None
        self._point.end()
        self._group.close()

    def _go_on_alone(self) -> bool:
        """There will be no place. True: stop here."""
        if self._says and not self._alone:
            self._says = False
            log.warning(
                "Preemption: the launchers could not agree on a place where all ranks stop: the ranks train on until "
                "the launcher ends them (at the latest by its --term-timeout), and no checkpoint is saved for the "
                "preemption: the last regular one counts"
            )
        return self._alone
