"""The way the ranks of a process group talk: the least of each value, bytes from one rank, bytes to rank 0.

Each call is one collective: every rank of the group makes the same calls in the same order.

`OwnGroup` is for exchanges beside the training: over gloo, no NCCL, nothing of the training's. A wait can be given up
from another thread, and the interpreter can exit in the middle of one. So nothing ever blocks inside a collective: it
is started, and asked now and then whether it is done. One that is given up stays pending in gloo's threads, and its
group is then kept forever, because gloo's end of a group waits for it.

Does not cover: ranks that died or do not call. As with any collective of the training, the others then wait.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .exchange import Channel

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

log = logging.getLogger("holdfast.straggler")

TIMEOUT = 1800.0
"""Seconds that the slowest rank may be behind the fastest, as with torch's own groups. A dead rank is seen at once."""
_FIRST_LOOK, _LONGEST_LOOK = 50e-6, 10e-3  # seconds between looks whether a collective is done

_made: Counter[tuple[int, ...]] = Counter()


class GivenUp(Exception):
    """The wait was ended by `give_up`."""


def find(group: dist.ProcessGroup | None, collective: bool, own: bool) -> Channel:
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

        tensor = torch.tensor(values, dtype=torch.float64, device=self._device())
        self._all_reduce(tensor)
        result: list[float] = tensor.tolist()
        return result

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """One broadcast."""
        import torch

        own = bytearray(payload if root == self.rank else bytes(length))
        tensor = torch.frombuffer(own, dtype=torch.uint8).to(self._device())
        self._broadcast(tensor, root)
        return bytes(tensor.tolist())

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytearray | None:
        """One gather."""
        import torch

        device = self._device()
        row = torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8).to(device)
        if self.rank != 0:
            self._gather(row, None)
            return None
        # One block of memory for all rows: on the CPU that of the result, elsewhere one that comes over in one copy.
        told = bytearray(self.size * length)
        host = torch.frombuffer(told, dtype=torch.uint8)
        rows = host if device.type == "cpu" else row.new_empty(len(told))
        self._gather(row, list(rows.view(self.size, length).unbind()))
        if rows is not host:
            host.copy_(rows)
        return told

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._group)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        import torch.distributed as dist

        dist.broadcast(tensor, src=self.ranks[root], group=self._group)

    def _gather(self, row: torch.Tensor, places: list[torch.Tensor] | None) -> None:
        import torch.distributed as dist

        dist.gather(row, places, dst=self.ranks[0], group=self._group)

    def _device(self) -> torch.device:
        """Where the group's tensors must live: the CPU if any of its backends serves it, else the GPU."""
        import torch
        import torch.distributed as dist

        config = str(dist.get_backend_config(self._group))
        served = [pair.partition(":")[0] for pair in config.split(",")]
        if "cpu" in served or "cuda" not in served:
            return torch.device("cpu" if "cpu" in served else served[0])
        return torch.device("cuda", torch.cuda.current_device())


class OwnGroup(GroupChannel):
    """A channel over gloo, of the ranks of a process group; None is the default one.

    It is made of `ProcessGroupGloo` and the store of the default group, and not by `dist.new_group`. That needs all
    ranks of the job for a group of some of them; with `use_local_synchronization` it names a group after the number of
    groups that the rank is in, so that ranks in different numbers of groups, as with Megatron, wait for each other for
    ever.

    Does not cover: several collectives at once.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Made by all ranks of the group at the same point; the first collective connects them. A collective raises
        RuntimeError if not all ranks came within `TIMEOUT`."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        super().__init__(group)
        members = tuple(self.ranks)
        digest = hashlib.blake2b(repr(members).encode(), digest_size=8).hexdigest()
        _made[members] += 1  # the same on all ranks, since they make it together
        store = dist.PrefixStore(f"holdfast/straggler/{digest}/{_made[members]}/", _get_default_store())
        # Ranks connect when they first talk: rank 0 with all, the others with a few. A full mesh of 16,384 ranks would
        # be more sockets than a process may have.
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=TIMEOUT)
        options._devices = [gloo.create_default_device(lazy_init=True)]
        self._gloo: Any = gloo(store, self.rank, self.size, options)
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """End the wait that another thread is in, and all later ones: they raise `GivenUp`."""
        self._given_up.set()

    def close(self) -> None:
        """Leave the group, while no collective is pending. Ranks that are in one then get an error."""
        self._gloo = None

    def _device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        self._finish(self._gloo.allreduce(tensor, dist.ReduceOp.MIN), tensor)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self._finish(self._gloo.broadcast(tensor, root), tensor)

    def _gather(self, row: torch.Tensor, places: list[torch.Tensor] | None) -> None:
        self._finish(self._gloo.gather(places or [], row, 0), row, *(places or []))

    def _finish(self, work: Any, *tensors: object) -> None:
        """Wait for a collective; RuntimeError if it failed."""
        wait = _FIRST_LOOK
        while not work.is_completed():
            if self._given_up.wait(wait):
                _keep_for_ever((self._gloo, work, tensors))
                raise GivenUp
            wait = min(2 * wait, _LONGEST_LOOK)
        work.wait()


def _keep_for_ever(pending: tuple[object, ...]) -> None:
    """No reference of Python's survives the end of the interpreter, unless it was never counted."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pending))
