"""A channel of the detector's own, over gloo, for exchanges beside the training: no NCCL, nothing of the training's.

What always holds: a wait can be given up from another thread, and the interpreter can exit in the middle of one. So
nothing ever blocks inside a collective: it is started, and asked now and then whether it is done. One that is given up
stays pending in gloo's threads, and its group is then kept for ever, because gloo's end of a group waits for it.

It is made of `ProcessGroupGloo` and the store of the default group, and not by `dist.new_group`. That needs all ranks
of the job for a group of some of them; with `use_local_synchronization` it names a group after the number of groups
that the rank is in, so that ranks in different numbers of groups, as with Megatron, wait for each other for ever.

Does not cover: making the group, which waits for all its ranks on the calling thread; several collectives at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

TIMEOUT = 1800.0
"""Seconds that the slowest rank may be behind the fastest, as with torch's own groups. A dead rank is seen at once."""
_FIRST_LOOK, _LONGEST_LOOK = 50e-6, 10e-3  # seconds between looks whether a collective is done

_made: Counter[tuple[int, ...]] = Counter()


class GivenUp(Exception):
    """The wait was ended by `give_up`."""


class OwnGroup:
    """A channel (see `channel.Channel`) over gloo, of the ranks of a process group; None is the default one."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: float = TIMEOUT) -> None:
        """Made by all ranks of the group at the same point. `timeout` in seconds. RuntimeError if they do not come."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _get_default_store

        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.ranks: Sequence[int] = range(self.size) if group is None else dist.get_process_group_ranks(group)
        members = tuple(self.ranks)
        digest = hashlib.blake2b(repr(members).encode(), digest_size=8).hexdigest()
        _made[members] += 1  # the same on all ranks, since they make it together
        store = dist.PrefixStore(f"holdfast/straggler/{digest}/{_made[members]}/", _get_default_store())
        self._gloo: Any = dist.ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=timeout))
        self._given_up = threading.Event()

    def least(self, values: list[float]) -> list[float]:
        """One all-reduce."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        self._finish(self._gloo.allreduce(tensor, dist.ReduceOp.MIN), tensor)
        result: list[float] = tensor.tolist()
        return result

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """One broadcast."""
        import torch

        own = bytearray(payload if root == self.rank else bytes(length))
        tensor = torch.frombuffer(own, dtype=torch.uint8)
        self._finish(self._gloo.broadcast(tensor, root), tensor)
        return bytes(own)

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytearray | None:
        """One gather."""
        import torch

        row = torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8)
        if self.rank != 0:
            self._finish(self._gloo.gather([], row, 0), row)
            return None
        told = bytearray(self.size * length)
        rows = torch.frombuffer(told, dtype=torch.uint8)
        self._finish(self._gloo.gather(list(rows.view(self.size, length).unbind()), row, 0), rows, row)
        return told

    def give_up(self) -> None:
        """End the wait that another thread is in, and all later ones: they raise `GivenUp`."""
        self._given_up.set()

    def close(self) -> None:
        """Leave the group, while no collective is pending. Ranks that are in one then get an error."""
        self._gloo = None

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
