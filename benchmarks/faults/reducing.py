"""The program's collectives: the one place where a rank can take part in another one than the rest."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.faults.point import Point


class Reducing:
    """Sums and barriers of all ranks, and of a smaller group."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._some = dist.new_group() if point.kind == "left_out_of_group" and point.cycle == 0 else None

    def begin(self) -> None:
        """After the model is loaded: what ranks agree about at first."""
        self.all_reduce(torch.zeros(1), "init", 0)

    def all_reduce(self, tensor: torch.Tensor, phase: str, step: int) -> None:
        """The sum over all ranks, in place."""
        self._point.enters(phase, step)
        if self._replaced(tensor, phase, step):
            return
        dist.all_reduce(tensor)

    def barrier(self, phase: str, step: int) -> None:
        """All ranks are here."""
        if not self._replaced(torch.zeros(1), phase, step):
            dist.barrier()

    def _replaced(self, tensor: torch.Tensor, phase: str, step: int) -> bool:
        if (joint := self._point.joint(phase, step)) is not None:
            joint(self._point, tensor, self._some)
        if (other := self._point.collective(phase, step)) is None:
            return False
        other(self._point, tensor)
        return True
