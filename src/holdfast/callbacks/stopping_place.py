"""Where a preempted training stops: all its ranks at the same place, in one of three ways.

Under ft_launcher the launchers agree on a place (`Agreed`), and the ranks run no collective for it while they train; a
process that trains alone stops at its next boundary (`Way`); several ranks under another launcher ask each other
(`Together`). What always holds: all ranks of a training take the same way; no way asks anybody in a signal handler; the
place is a boundary of training that every rank comes to.

Does not cover: ranks that train different numbers of batches; several ranks without a process group and without
ft_launcher; several ranks whose launchers cannot agree (a node is lost): they train on until they are ended.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.side_group import CollectiveFailed, SideGroup

from .notices import Notices

PATIENCE = 1800.0
"""Seconds that the ranks wait for one another here: as long as in the training's own groups."""
ASK_EVERY = 0.1
"""Seconds between two questions of ranks that ask each other (or two batches, if that is longer)."""
MOST_BATCHES = 10_000
"""Between two questions."""
_NEVER = 1 << 62

log = logging.getLogger("holdfast.preemption")


class Way:
    """How this rank learns that all stop here; by itself: of the only process of its training, at the next boundary.

    `batches` are the training batches done in this start.
    """

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    @property
    def deadline(self) -> float | None:
        """When the job is killed, in seconds of `time.monotonic`, if the launcher says."""
        return None

    def listening(self) -> bool:
        """This rank now has its signal handlers, and on return all ranks have theirs; collective.

        True: all ranks stop here, before anything is trained. Raises CollectiveFailed when a rank ended before it
        listened.
        """
        return False

    def begin(self) -> bool:
        """Training begins; True: it need not."""
        return self._notices.number != 0

    def after_batch(self, batches: int) -> bool:
        """After each training batch."""
        return self._notices.number != 0

    def in_validation(self, batches: int, place: int) -> bool:
        """In a validation, at this place of it."""
        return self._notices.number != 0

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
    return Together(group, notices) if group.process_group is not None else Way(notices)


class Agreed(Way):
    """The launchers agree on a place. Where they cannot, a process alone stops by itself, and several train on."""

    def __init__(self, point: StopPoint, notices: Notices, group: SideGroup) -> None:
        super().__init__(notices)
        self._point, self._group = point, group
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


class Together(Way):
    """Several ranks without launchers that agree: they ask each other about ten times a second.

    By an all-reduce in a group of their own, on the CPU, begun after one training batch and read after the next, so
    that nobody waits for it. Every rank asks after the same batches, as each answer carries the longest step of all
    ranks. In validations they do not ask: ranks may have different numbers of batches there. When asking fails, the
    ranks continue to train and log that once.
    """

    def __init__(self, group: SideGroup, notices: Notices) -> None:
        super().__init__(notices)
        self._group = group
        self._work: Any = None
        self._tensor: Any = None
        self._next = 1
        self._since, self._batches = time.monotonic(), 0

    def listening(self) -> bool:
        return self._group.maximum([self._notices.number != 0]) != [False]

    def begin(self) -> bool:
        try:
            return self.listening()
        except CollectiveFailed as error:
            self._fail(error)
            return False

    def after_batch(self, batches: int) -> bool:
        if batches < self._next:
            return False
        if self._work is None:
            self._ask(batches)
            self._next = batches + 1
            return False
        return self._read(batches)

    def in_validation(self, batches: int, place: int) -> bool:
        return False

    def close(self) -> None:
        self._next = _NEVER
        self._work = None
        self._group.close()

    def _ask(self, batches: int) -> None:
        import torch
        import torch.distributed as dist

        now = time.monotonic()
        step = (now - self._since) / max(1, batches - self._batches)
        self._since, self._batches = now, batches
        self._tensor = torch.tensor([float(self._notices.number != 0), step], dtype=torch.float64)
        try:
            self._work = dist.all_reduce(
                self._tensor, op=dist.ReduceOp.MAX, group=self._group.process_group, async_op=True
            )
        except RuntimeError as error:
            self._fail(error)

    def _read(self, batches: int) -> bool:
        work, self._work = self._work, None
        try:
            work.wait()
        except RuntimeError as error:
            self._fail(error)
            return False
        asked, step = self._tensor.tolist()
        self._next = batches + batches_between(step, ASK_EVERY)
        return bool(asked)

    def _fail(self, error: Exception) -> None:
        """Without the others there is no stopping; the training's own collectives will say what is wrong with them."""
        self._next = _NEVER
        log.warning(
            "the ranks can no longer agree to stop when preempted, and train on: %s",
            str(error).split("\n")[0],
        )


def batches_between(step: float, every: float) -> int:
    """How many batches of `step` seconds from one question to the next, `every` seconds later."""
    if step <= 0:
        return MOST_BATCHES
    return max(1, min(MOST_BATCHES, int(every / step)))
