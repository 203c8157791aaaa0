"""Faults by which ranks disagree about what they communicate.

Three ranks or more: of two, the odd one cannot be named. On gloo most of these end with an error, often of a rank that
did nothing wrong, where the odd rank's message is longer than expected, and otherwise hang.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.faults.corpus import TEAMS, THREE, also, fault, second
from benchmarks.faults.injection import WIDTH, InjectionPoint

_ALL = ("init", "collective", "validation", "checkpoint")
_OTHER = "the odd rank is in another collective, and so not in the one in which the others wait"
_ABSENT = "it is in another call, and never came to the one in which its neighbour waits"
_odd = partial(fault, layouts=THREE, hangs=None)
_mismatch = partial(_odd, verdict="mismatched_collective", phases=_ALL[1:])


def _around(*, sends: bool, receives: bool) -> None:
    """Each rank's tensor to the next one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    works = [dist.isend(torch.full((4,), float(rank)), (rank + 1) % world)] if sends else []
    works += [dist.irecv(torch.empty(4), (rank - 1) % world)] if receives else []
    for work in works:
        if work is not None:
            work.wait()


# In a collective


@_mismatch("skipped", at="collective")
@also("missing_collective", _OTHER)
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank leaves out an all-reduce, and comes to the next collective."""


@_mismatch("one_more", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank takes part in an all-reduce that no other rank makes."""
    dist.all_reduce(torch.zeros(1024))
    dist.all_reduce(tensor)


@_mismatch("other_operation", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank broadcasts where the others reduce."""
    dist.broadcast(tensor, point.rank)


@_mismatch("other_size", phases=_ALL[:3], at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces a tensor of another size."""
    dist.all_reduce(tensor.repeat(4))


@_mismatch("other_type", at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces another type of number."""
    dist.all_reduce(tensor.to(torch.float32))


@_mismatch("other_order", at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank makes two collectives in the other order."""
    both = [lambda: dist.all_reduce(torch.zeros(64)), lambda: dist.broadcast(torch.zeros(8), 0)]
    for each in reversed(both) if point.mine else both:
        each()


@_odd("left_out_of_group", "missing_collective", (*_ALL[1:], "shutdown"), hangs=True, at="joint")
@also("mismatched_collective", _OTHER)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A member of a group does not come to the group's collective, and waits in one of all ranks."""
    if not point.mine:
        dist.all_reduce(torch.zeros(8), group=group)


@second("team_skipped", "missing_collective", ("team",), at="collective", layouts=TEAMS, held_out=False)
@also("mismatched_collective", "the rank is in a collective of all ranks, its team in one of its own")
def _(point: InjectionPoint, tensor: Any) -> None:
    """A member of a team leaves out the team's sum, and comes to that of all ranks."""


@second("other_group_first", "mismatched_collective", ("team",), at="joint", layouts=TEAMS, held_out=False)
@also("missing_collective", "it waits for all ranks, and never came to the sum of its team")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A rank makes the sum of all ranks before that of its team; the others do it in the other order."""
    both = [lambda: dist.all_reduce(torch.zeros(8), group=group), lambda: dist.all_reduce(torch.zeros(8))]
    for each in reversed(both) if point.mine else both:
        each()


@fault("gather_to_itself", "mismatched_collective", _ALL[1:3], at="joint", layouts=THREE)
@also("missing_collective", "it waits for what no rank sends to it, and never comes to the next collective")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank takes itself for the one to which all send, and waits; the others send to rank 0."""
    root = point.rank if point.mine else 0
    parts = [torch.zeros(4) for _ in range(point.world)] if root == point.rank else None
    dist.gather(torch.zeros(4), parts, dst=root)


# In sends and receives


@_mismatch("never_received", at="joint")
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not receive what another sends to it."""
    _around(sends=True, receives=not point.mine)


@_mismatch("never_sent", at="joint")
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not send what another waits for."""
    _around(sends=not point.mine, receives=True)


@second("skipped_send", "mismatched_collective", ("exchange",), at="send", layouts=THREE)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage leaves out one send, and continues."""


@second("skipped_receive", "mismatched_collective", ("exchange",), at="recv", layouts=THREE, hangs=None)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage leaves out one receive, and continues with old numbers."""


@second("wrong_peer", "mismatched_collective", ("exchange",), at="send", layouts=THREE)
@also("missing_collective", _ABSENT)
def _(point: InjectionPoint, tensor: Any, peer: int) -> None:
    """A stage sends to a rank that does not expect it."""
    dist.send(tensor, next(rank for rank in range(point.world) if rank not in (point.rank, peer)))


@second("one_microbatch_more", "mismatched_collective", ("team",), layouts=THREE, held_out=False)
@also("missing_collective", "it waits for one more microbatch, and never comes to the sum of all ranks")
def _(point: InjectionPoint) -> None:
    """A stage expects one microbatch more than its neighbour sends."""
    width = 2 if point.world == 4 else 1
    neighbour = point.rank - width if point.rank >= width else point.rank + width
    dist.recv(torch.empty(WIDTH, dtype=torch.float64), neighbour)
