"""A process group on the CPU by which the ranks of a trainer agree, apart from the training's own, with a timeout.

The training's own group cannot be used: a rank that leaves early would answer the others' gradients with its flag.
What always holds:

- Making it waits for the other ranks as long as the training itself would, and raises nothing. The ranks may be far
  apart where a trainer is set up.
- A call returns in every case, after at most its patience. A process that is alone gets its own value.
- CPU tensors only, so it works with and without GPUs.

Does not cover: ranks that do not call (the others wait for the patience, once: after an operation that timed out the
group is unusable), and a training whose own group is broken (then this one cannot be made either, and the training's
next operation raises the cause).
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

TIMEOUT = 60.0
"""Seconds in which all ranks must have come to an operation."""
AS_IN_THE_TRAINING = 1800.0
"""Seconds in which all ranks must have come to be set up, where the training's own timeout cannot be read: torch's."""

log = logging.getLogger("holdfast")


class CollectiveFailed(Exception):
    """Not every rank took part; the text has the cause."""


class SideGroup:
    """Made by all ranks of the default process group together, in the same order of such groups. That it cannot be made
    is logged; every call then raises CollectiveFailed."""

    def __init__(self, timeout: float = TIMEOUT, *, alone: bool = False) -> None:
        """`alone`: of this process only, whatever other ranks there are; made without them."""
        import torch.distributed as dist

        self.process_group: Any = None
        """None where this process is alone; no group of torch's where it could not be made."""
        self.rank = 0
        """This process's place in the group."""
        self.failed = ""
        """Why nothing can be agreed on any more."""
        self._timeout = timeout
        self.setup_timeout = timeout
        """Seconds that a rank may be late while the trainer is set up: as many as the training gives it."""
        if not alone and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank = dist.get_rank()
            self.setup_timeout = max(timeout, _timeout_of_the_training())
            self._make()

    def _make(self) -> None:
        import torch.distributed as dist

        try:
            self.process_group = dist.new_group(
                backend="gloo", timeout=datetime.timedelta(seconds=self.setup_timeout)
            )
        except Exception as error:  # which ones, is up to torch
            self.process_group = _NOT_MADE
            self.failed = f"no group of the ranks' own could be made: {_first_line(error)}"
            log.warning("the ranks cannot agree on anything but the training: %s", self.failed)
            return
        with suppress(Exception):  # not every torch can; what is not asked through here then waits longer
            self.process_group.set_timeout(datetime.timedelta(seconds=self._timeout))

    def maximum(
        self,
        values: Sequence[float],
        *,
        patience: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[float]:
        """The greatest of each over all ranks. Raises CollectiveFailed.

        It raises after `patience` seconds, or the group's timeout; `meanwhile` is called now and then while it waits.
        """
        import torch
        import torch.distributed as dist

        if self.process_group is None:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._do("allreduce", tensor, options, patience, meanwhile)
        return list(tensor.tolist())

    def broadcast(self, values: Sequence[float], *, patience: float | None = None) -> list[float]:
        """Rank 0's, on every rank. Raises CollectiveFailed."""
        import torch

        if self.process_group is None:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64)
        self._broadcast(tensor, patience)
        return list(tensor.tolist())

    def broadcast_text(self, text: str, *, patience: float | None = None) -> str:
        """Rank 0's text, on every rank. Raises CollectiveFailed."""
        import torch

        if self.process_group is None:
            return text
        raw = text.encode()
        (size,) = self.broadcast([len(raw)], patience=patience)
        padded = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0 and raw:
            padded = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if size:
            self._broadcast(padded, patience)
        return bytes(padded.tolist()).decode()

    def close(self) -> None:
        """Not collective. May be called twice."""
        import torch.distributed as dist

        group, self.process_group = self.process_group, None
        if group is not None and group is not _NOT_MADE and dist.is_initialized():
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError) as error:
                log.debug("the side group was gone already: %s", error)

    def _broadcast(self, tensor: Any, patience: float | None) -> None:
        import torch.distributed as dist

        options: Any = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._do("broadcast", tensor, options, patience)

    def _do(
        self,
        operation: str,
        tensor: Any,
        options: Any,
        patience: float | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if self.failed:
            raise CollectiveFailed(self.failed)
        # The operation itself must end: closing a group waits for those that have not.
        options.timeout = datetime.timedelta(seconds=self._timeout if patience is None else patience)
        try:
            _wait(getattr(self.process_group, operation)([tensor], options), meanwhile)
        except RuntimeError as error:
            self.failed = _first_line(error)
            raise CollectiveFailed(self.failed) from error


_NOT_MADE = object()


def _timeout_of_the_training() -> float:
    """Seconds that the default group waits for a rank."""
    import torch
    import torch.distributed as dist

    world: Any = dist.group.WORLD
    timeouts = []
    for device in ("cpu", "cuda"):
        with suppress(Exception):  # no such device in this group, or a torch without this attribute
            timeouts.append(world._get_backend(torch.device(device)).options._timeout.total_seconds())
    return max(timeouts, default=AS_IN_THE_TRAINING)


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


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
