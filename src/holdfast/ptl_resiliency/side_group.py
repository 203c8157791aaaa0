"""What the ranks of a trainer agree on beside the training: a process group of its own, on the CPU, that gives up.

The training's own group is no place for it: a rank that leaves early would answer the others' gradients with its flag.
What always holds: a call returns in every case, after at most its group's timeout; without several ranks it is only a
look at the own value; CPU tensors only, so it works with and without GPUs.

Does not cover: ranks that do not call. The others then wait for the timeout, once: after that nothing is agreed on
any more.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

TIMEOUT = 60.0
"""Seconds in which all ranks must have come."""

log = logging.getLogger("holdfast.ptl_resiliency")


class Disagreement(Exception):
    """The ranks could not be asked; the text says why."""


class SideGroup:
    """Made by all ranks of the default process group together, in the same order of such groups."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        import torch.distributed as dist

        self.process_group: Any = None
        """None where this process is alone."""
        self._failed = ""
        self._timeout = timeout
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.process_group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        import torch.distributed as dist

        return dist.get_rank(self.process_group) if self.process_group is not None else 0

    def maximum(
        self,
        values: Sequence[float],
        *,
        patience: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[float]:
        """The greatest of each over all ranks. Raises Disagreement.

        With `patience` it gives up after so many seconds, if that is before the group's timeout; `meanwhile` is called
        now and then while it waits.
        """
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(list(values), dtype=torch.float64)

        def collective() -> None:
            options: Any = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.MAX
            # The operation itself must end: closing a group waits for those that have not.
            options.timeout = datetime.timedelta(seconds=self._timeout if patience is None else patience)
            _wait(self.process_group.allreduce([tensor], options), meanwhile)

        self._do(collective)
        return list(tensor.tolist())

    def from_first(self, values: Sequence[float]) -> list[float]:
        """Rank 0's, on every rank. Raises Disagreement."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(list(values), dtype=torch.float64)
        self._do(lambda: dist.broadcast(tensor, group_src=0, group=self.process_group))
        return list(tensor.tolist())

    def text_from_first(self, text: str) -> str:
        """Rank 0's text, on every rank. Raises Disagreement."""
        import torch
        import torch.distributed as dist

        if self.process_group is None:
            return text
        raw = text.encode()
        (size,) = self.from_first([len(raw)])
        padded = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0 and raw:
            padded = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if size:
            self._do(lambda: dist.broadcast(padded, group_src=0, group=self.process_group))
        return bytes(padded.tolist()).decode()

    def close(self) -> None:
        """Not collective. May be called twice."""
        import torch.distributed as dist

        group, self.process_group = self.process_group, None
        if group is not None and dist.is_initialized():
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError) as error:
                log.debug("the side group was gone already: %s", error)

    def _do(self, collective: Any) -> None:
        if self.process_group is None:
            return
        if self._failed:
            raise Disagreement(self._failed)
        try:
            collective()
        except RuntimeError as error:
            self._failed = str(error).splitlines()[0]
            raise Disagreement(self._failed) from error


def _wait(work: Any, meanwhile: Callable[[], None] | None) -> None:
    """Raises RuntimeError when it fails."""
    began, pause = time.monotonic(), 0.001
    while not work.is_completed():
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    try:
        work.wait()
    except RuntimeError as error:
        waited = time.monotonic() - began
        raise RuntimeError(f"not all ranks have come, after {waited:.1f} s: {error}") from error
