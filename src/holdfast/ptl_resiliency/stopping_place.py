"""Where a preempted training stops: all its ranks at the same place, in one of three ways.

Under ft_launcher the launchers agree on a place (`Agreed`); a process that trains alone stops at its next boundary
(`Alone`); several ranks under another launcher ask each other about ten times a second (`Together`). What always holds:
all ranks of a training take the same way; no way asks anybody in a signal handler; the place is a boundary of training
that every rank comes to.

Does not cover: ranks that train different numbers of batches; several ranks without a process group and without
ft_launcher.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from holdfast.fault_tolerance.stop import END, StopPoint, position

from .notices import Notices
from .side_group import Disagreement, SideGroup

PATIENCE = 1800.0
"""Seconds that the ranks wait for one another here: as long as in the training's own groups."""
ASK_EVERY = 0.1
"""Seconds between two questions among ranks (or two batches, if that is longer)."""
RARELY = 10.0
"""The same where the launchers agree: only in case that they cannot."""
MOST_BATCHES = 10_000
"""Between two questions."""
LOADER = 1 << 16
"""Places of a validation that each of its data loaders has."""

log = logging.getLogger("holdfast.ptl_resiliency")


class Way(Protocol):
    """How this rank learns that all stop here. `batches` are the training batches done in this start."""

    @property
    def deadline(self) -> float | None:
        """When the job is killed, in seconds of `time.monotonic`, if the launcher says."""

    def begin(self) -> bool:
        """Training begins; True: it need not."""

    def after_batch(self, batches: int) -> bool:
        """After each training batch."""

    def in_validation(self, batches: int, place: int) -> bool:
        """In a validation, at this place of it."""

    def close(self) -> None:
        """Training is over. May be called twice."""


def find_way(notices: Notices) -> Way:
    """The way of this rank, and of all others. Collective: called by all ranks of the default process group."""
    group = SideGroup(PATIENCE)
    point = StopPoint.find()
    try:
        everyone_has_one = group.maximum([point is None]) == [False]
    except Disagreement as error:
        log.warning("the ranks cannot agree on how to stop when preempted: %s", error)
        everyone_has_one = False
    several = group.process_group is not None
    if point is not None and everyone_has_one:
        return Agreed(point, notices, Together(group, notices, RARELY) if several else None)
    if point is not None:
        point.end()
    return Together(group, notices) if several else Alone(notices)


class Alone:
    """The only process of its training: at the next boundary."""

    deadline = None

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    def begin(self) -> bool:
        return self._notices.number != 0

    def after_batch(self, batches: int) -> bool:
        return self._notices.number != 0

    def in_validation(self, batches: int, place: int) -> bool:
        return self._notices.number != 0

    def close(self) -> None:
        """Nothing to give back."""


class Together:
    """The ranks tell each other by an all-reduce in a group of their own, begun after a batch and read after the next.

    None in validations, where ranks may have different numbers of batches. It carries the longest step of all ranks,
    from which each finds the same batch for the next question.
    """

    deadline = None

    def __init__(self, group: SideGroup, notices: Notices, every: float = ASK_EVERY) -> None:
        self._group, self._notices, self._every = group, notices, every
        self._work: Any = None
        self._tensor: Any = None
        self._next = 1
        self._since, self._batches = time.monotonic(), 0
        self.given_up = False
        """That another way has failed counts as a notice."""

    def begin(self) -> bool:
        try:
            return self._group.maximum([self._asked()]) != [False]
        except Disagreement as error:
            self._fail(error)
            return False

    def after_batch(self, batches: int) -> bool:
        if batches < self._next:
            return False
        if self._work is None:
            self._ask(batches)
            self._next = batches + 1
            return False
        return self._hear(batches)

    def in_validation(self, batches: int, place: int) -> bool:
        return False

    def close(self) -> None:
        self._next = 1 << 62
        self._work = None
        self._group.close()

    def _asked(self) -> bool:
        return self._notices.number != 0 or self.given_up

    def _ask(self, batches: int) -> None:
        import torch
        import torch.distributed as dist

        now = time.monotonic()
        step = (now - self._since) / max(1, batches - self._batches)
        self._since, self._batches = now, batches
        self._tensor = torch.tensor([float(self._asked()), step], dtype=torch.float64)
        try:
            self._work = dist.all_reduce(
                self._tensor, op=dist.ReduceOp.MAX, group=self._group.process_group, async_op=True
            )
        except RuntimeError as error:
            self._fail(error)

    def _hear(self, batches: int) -> bool:
        work, self._work = self._work, None
        try:
            work.wait()
        except RuntimeError as error:
            self._fail(error)
            return False
        asked, step = self._tensor.tolist()
        self._next = batches + batches_between(step, self._every)
        return bool(asked)

    def _fail(self, error: Exception) -> None:
        """Without the others there is no stopping; the training's own collectives will say what is wrong with them."""
        self._next = 1 << 62
        log.warning(
            "the ranks can no longer agree to stop when preempted, and train on: %s",
            str(error).split("\n")[0],
        )


class Agreed:
    """The launchers agree on a place. Where they cannot, the ranks do it themselves."""

    def __init__(self, point: StopPoint, notices: Notices, together: Together | None) -> None:
        self._point, self._together = point, together
        self._passes = point.passes
        notices.tell = point.notice
        if notices.number:
            point.notice(notices.number)
        self._notices = notices
        self._last: float | None = None
        point.begin()

    @property
    def deadline(self) -> float | None:
        return self._last or self._point.deadline

    def begin(self) -> bool:
        return False

    def after_batch(self, batches: int) -> bool:
        if self._passes(position(batches)):
            return True
        if self._together is None:
            return self._point.given_up
        if batches < self._together._next:
            return False
        self._together.given_up = self._point.given_up
        return self._together.after_batch(batches)

    def in_validation(self, batches: int, place: int) -> bool:
        if self._passes(position(batches, place)):
            return True
        return self._together is None and self._point.given_up

    def close(self) -> None:
        self._last = self._point.deadline
        self._notices.tell = None
        self._point.end()
        if self._together is not None:
            self._together.close()


def batches_between(step: float, every: float) -> int:
    """How many batches of `step` seconds from one question to the next, `every` seconds later."""
    if step <= 0:
        return MOST_BATCHES
    return max(1, min(MOST_BATCHES, int(every / step)))


class ValidationPlaces:
    """Counts the places of one validation, so that a rank which has fewer batches of a loader than another comes to the
    place before the loaders' results are reduced over the ranks with the same number as the other."""

    def __init__(self) -> None:
        self._loader, self._batch = 0, 0

    def start(self) -> int:
        """Before the first batch."""
        self._loader = self._batch = 0
        return 1

    def after_batch(self) -> int:
        """After each batch."""
        self._batch = min(self._batch + 1, LOADER - 1)
        return self._number()

    def after_loader(self) -> int:
        """When all batches of one loader are done."""
        self._loader, self._batch = self._loader + 1, 0
        return self._number()

    def _number(self) -> int:
        return min(1 + self._loader * LOADER + self._batch, END - 1)
