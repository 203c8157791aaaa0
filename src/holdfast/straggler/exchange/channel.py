"""The way the ranks of a process group talk: the least of each value, bytes from one rank, bytes to rank 0.

Each call is one collective: every rank of the group makes the same calls in the same order.
Does not cover: ranks that died or do not call. As with any collective of the training, the others then wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class Channel(Protocol):
    """Rank `rank` of `size` within the group. `rank` is not the global rank: that is `ranks[rank]`."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> Sequence[int]: ...

    def least(self, values: list[float]) -> list[float]:
        """The least of each value over all ranks; the same on all."""

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """The payload of the rank `root`, `length` bytes; what other ranks give is not looked at."""

    def bytes_to_rank_0(self, payload: bytes, length: int) -> list[bytes] | None:
        """On rank 0 the payload of each rank, padded with zeros to `length`; None elsewhere."""


def distributed() -> bool:
    """True if torch's default process group is initialised. Loads no torch that is not loaded."""
    module: Any = sys.modules.get("torch.distributed")
    return module is not None and module.is_available() and module.is_initialized()


def rank_alone() -> int:
    """The rank of a process without a process group: what its launcher said, or 0."""
    told = os.environ.get("RANK", "")
    return int(told) if told.isdecimal() else 0


class Alone:
    """A channel with one rank, which moves nothing."""

    size = 1
    rank = 0

    def __init__(self, rank: int) -> None:
        self.ranks: Sequence[int] = (rank,)

    def least(self, values: list[float]) -> list[float]:
        """The values."""
        return values

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """The payload."""
        return payload

    def bytes_to_rank_0(self, payload: bytes, length: int) -> list[bytes] | None:
        """The payload of the only rank."""
        return [payload]


class GroupChannel:
    """A channel over a process group of torch; None is the default group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        import torch.distributed as dist

        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.ranks: Sequence[int] = range(self.size) if group is None else dist.get_process_group_ranks(group)

    def least(self, values: list[float]) -> list[float]:
        """One all-reduce."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64, device=self._device())
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._group)
        result: list[float] = tensor.tolist()
        return result

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """One broadcast."""
        import torch
        import torch.distributed as dist

        own = bytearray(payload if root == self.rank else bytes(length))
        tensor = torch.frombuffer(own, dtype=torch.uint8).to(self._device())
        dist.broadcast(tensor, src=self.ranks[root], group=self._group)
        return bytes(tensor.tolist())

    def bytes_to_rank_0(self, payload: bytes, length: int) -> list[bytes] | None:
        """One gather."""
        import torch

        padded = bytearray(payload.ljust(length, b"\0"))
        rows = self._gather(torch.frombuffer(padded, dtype=torch.uint8).to(self._device()))
        if rows is None:
            return None
        host = bytearray(self.size * length)
        torch.frombuffer(host, dtype=torch.uint8).copy_(rows.view(-1))
        return [bytes(host[start : start + length]) for start in range(0, len(host), length)]

    def _gather(self, row: torch.Tensor) -> torch.Tensor | None:
        import torch
        import torch.distributed as dist

        # One block of memory for all rows, so that they come to the host in one copy.
        rows = row.new_empty((self.size, len(row))) if self.rank == 0 else None
        places = None if rows is None else list(torch.unbind(rows))
        dist.gather(row, places, dst=self.ranks[0], group=self._group)
        return rows

    def _device(self) -> torch.device:
        """Where the group's tensors must live: the CPU if any of its backends serves it, else the GPU."""
        import torch
        import torch.distributed as dist

        config = str(dist.get_backend_config(self._group))
        served = [pair.partition(":")[0] for pair in config.split(",")]
        if "cpu" in served or "cuda" not in served:
            return torch.device("cpu" if "cpu" in served else served[0])
        return torch.device("cuda", torch.cuda.current_device())
