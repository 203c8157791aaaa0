"""The way the ranks of a process group talk: the least of each value, bytes from one rank, bytes to rank 0.

Each call is one collective: every rank of the group makes the same calls in the same order.
Does not cover: ranks that died or do not call. As with any collective of the training, the others then wait.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .own_group import OwnGroup

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


log = logging.getLogger("holdfast.straggler")


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

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytes | bytearray | None:
        """On rank 0 the payloads of all ranks, rank after rank, each padded with zeros to `length`; None elsewhere."""


def find(group: dist.ProcessGroup | None, collective: bool, own: bool = False) -> Channel:
    """The channel over this group, or the default one; without torch.distributed that of a rank alone, about which a
    warning is due if there are others and reports are `collective`. Loads no torch that is not loaded.

    `own`: a gloo group of the detector's own with the same ranks, if they are several. All of them make it together.
    """
    module: Any = sys.modules.get("torch.distributed")
    if group is not None or (module is not None and module.is_available() and module.is_initialized()):
        channel = GroupChannel(group)
        return OwnGroup(group) if own and channel.size > 1 else channel
    told = os.environ.get("RANK", "")
    rank, ranks = int(told) if told.isdecimal() else 0, os.environ.get("WORLD_SIZE", "1")
    if collective and ranks != "1":
        log.warning(
            "this is rank %d of %s, but torch.distributed is not initialised: its straggler reports are about "
            "itself only. Call init_process_group() before the first report",
            rank,
            ranks,
        )
    return Alone(rank)


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

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytes:
        """The payload of the only rank."""
        return payload.ljust(length, b"\0")


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

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytearray | None:
        """One gather."""
        import torch
        import torch.distributed as dist

        device = self._device()
        row = torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8).to(device)
        told = bytearray(self.size * length) if self.rank == 0 else bytearray()
        # One block of memory for all rows: on the CPU that of the result, elsewhere one that comes over in one copy.
        host = torch.frombuffer(told, dtype=torch.uint8) if told else row
        rows = host if device.type == "cpu" else row.new_empty(len(told))
        places = list(rows.view(self.size, length).unbind()) if told else None
        dist.gather(row, places, dst=self.ranks[0], group=self._group)
        if not told:
            return None
        if rows is not host:
            host.copy_(rows)
        return told

    def _device(self) -> torch.device:
        """Where the group's tensors must live: the CPU if any of its backends serves it, else the GPU."""
        import torch
        import torch.distributed as dist

        config = str(dist.get_backend_config(self._group))
        served = [pair.partition(":")[0] for pair in config.split(",")]
        if "cpu" in served or "cuda" not in served:
            return torch.device("cpu" if "cpu" in served else served[0])
        return torch.device("cuda", torch.cuda.current_device())
