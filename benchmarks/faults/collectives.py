"""Faults of communication: ranks that disagree about a collective.

Three ranks or more: of two, the odd one cannot be named. On gloo most of these end with an error, often of a rank that
did nothing wrong, where the odd rank's message is longer than expected, and otherwise hang.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.faults import corpus
from benchmarks.faults.corpus import THREE
from benchmarks.faults.injection import InjectionPoint

_ALL = ("init", "collective", "validation", "checkpoint")
_ODD = "the odd rank is in another collective, and so not in the one in which the others wait"
_fault = partial(corpus.fault, layouts=THREE, hangs=None)
_mismatch = partial(_fault, verdict="mismatched_collective", phases=_ALL[1:])


@_mismatch("skipped", also=("missing_collective", _ODD), at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank leaves out an all-reduce, and comes to the next collective."""


@_mismatch("one_more", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank takes part in an all-reduce that no other rank makes."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1024))
    dist.all_reduce(tensor)


@_mismatch("other_operation", phases=_ALL, at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank broadcasts where the others reduce."""
    import torch.distributed as dist

    dist.broadcast(tensor, point.rank)


@_mismatch("other_size", phases=_ALL[:3], at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces a tensor of another size."""
    import torch.distributed as dist

    dist.all_reduce(tensor.repeat(4))


@_mismatch("other_type", at="collective")
def _(point: InjectionPoint, tensor: Any) -> None:
    """One rank reduces another type of number."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(tensor.to(torch.float32))


@_mismatch("other_order", at="joint")
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank makes two collectives in the other order."""
    import torch
    import torch.distributed as dist

    both = [lambda: dist.all_reduce(torch.zeros(64)), lambda: dist.broadcast(torch.zeros(8), 0)]
    for each in reversed(both) if point.mine else both:
        each()


@_fault(
    "left_out_of_group",
    "missing_collective",
    (*_ALL[1:], "shutdown"),
    also=("mismatched_collective", _ODD),
    hangs=True,
    at="joint",
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """A member of a group does not come to the group's collective, and waits in one of all ranks."""
    import torch
    import torch.distributed as dist

    if not point.mine:
        dist.all_reduce(torch.zeros(8), group=group)


@_mismatch(
    "never_received",
    also=(
        "missing_collective",
        "it is in another collective, and never came to the receive for which its neighbour waits",
    ),
    at="joint",
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not receive what another sends to it."""
    _around(sends=True, receives=not point.mine)


@_mismatch(
    "never_sent",
    also=(
        "missing_collective",
        "it is in another collective, and never came to the send for which its neighbour waits",
    ),
    at="joint",
)
def _(point: InjectionPoint, tensor: Any, group: Any) -> None:
    """One rank does not send what another waits for."""
    _around(sends=not point.mine, receives=True)


@_mismatch(
    "uneven_data",
    also=("missing_collective", "it waits in the barrier at the end, and never came to the last all-reduce"),
    phases=("collective",),
    layouts=THREE,
    at="loop",
)
def _(point: InjectionPoint) -> None:
    """One rank has less data, leaves the loop early and waits at the end."""


def _around(*, sends: bool, receives: bool) -> None:
    """Each rank's tensor to the next one."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    works = []
    if sends:
        works.append(dist.isend(torch.full((4,), float(rank)), (rank + 1) % world))
    if receives:
        works.append(dist.irecv(torch.empty(4), (rank - 1) % world))
    for work in works:
        if work is not None:
            work.wait()
