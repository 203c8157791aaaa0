"""The fault `deadlock`: some ranks are in an all_reduce that the others never join.

It uses a process group of its own. An extra collective in the job's own group would not hang on gloo: it would meet the
next collective of the other ranks, which has another size, and end with an error. The group is made by all ranks
together, as torch demands, at the first moment when torch.distributed is initialised.

What this does not cover: jobs without torch.distributed. torch is never imported here before the job has done so.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.testing.errors import FaultSpecError
from holdfast.testing.fault import Fault

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Deadlock"]


class Deadlock:
    """One `deadlock` fault on one rank: first `prepare` on every rank, then `perform` on those that act."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._group: ProcessGroup | None = None

    def prepare(self) -> None:
        """Makes the group once it can be made. Collective: every rank must call it at the same point of the program."""
        if self._group is not None or "torch" not in sys.modules:
            return
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            seconds = self._fault.duration
            self._group = dist.new_group(timeout=None if seconds is None else timedelta(seconds=seconds))

    def perform(self) -> None:
        """Enters the all_reduce and waits there until torch's timeout (`for=`), which ends it with torch's error."""
        if self._group is None:
            raise FaultSpecError(
                f"{self._fault}: torch.distributed was not initialised when the fault was armed or at the first "
                "at_step; call init_process_group before, or use the fault 'sleep'"
            )
        import torch
        import torch.distributed as dist

        on_gpu = dist.get_backend(self._group) == "nccl"
        dist.all_reduce(torch.ones(1, device="cuda" if on_gpu else "cpu"), group=self._group)
        if on_gpu:
            torch.cuda.synchronize()  # On a GPU the call above only enqueues.
