"""Several ranks without launchers that agree: they ask each other where to stop, about ten times a second.

By an all-reduce in a group of their own, on the CPU, begun after one training batch and read after the next, so that
nobody waits for it. What always holds: every rank asks after the same batches, as each answer carries the longest step
of all ranks; when asking fails, the ranks continue to train and log that once.

Does not cover: ranks that train different numbers of batches. Validations: ranks may have different numbers of batches
there, so they ask after training batches only.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from holdfast.preemption.notices import Notices
from holdfast.side_group import CollectiveFailed, SideGroup

ASK_EVERY = 0.1
"""Seconds between two questions (or two batches, if that is longer)."""
MOST_BATCHES = 10_000
"""Between two questions."""
_NEVER = 1 << 62

log = logging.getLogger("holdfast.preemption")


class Together:
    """One rank's part, see :class:`.stopping_place.Way`."""

    deadline = None

    def __init__(self, group: SideGroup, notices: Notices) -> None:
        self._group, self._notices = group, notices
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
        return self._hear(batches)

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

    def _hear(self, batches: int) -> bool:
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
